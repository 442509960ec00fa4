"""Every vendored scenario, one test each; and the runner itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.__main__ import main
from tests.conformance.replay import VENDORED, Scenario, files_of, replay, scenarios_of

OWN = Path(__file__).parent / "own"
"""Further scenarios in the same format: what other methods of Flink's tests assert."""
SCENARIOS = [scenario for path in files_of([VENDORED, OWN]) for scenario in scenarios_of(path)]


@pytest.mark.parametrize("scenario", [pytest.param(item, id=item["id"]) for item in SCENARIOS])
def test_scenario(scenario: Scenario) -> None:
    """The production cores do what Flink's own test asserts."""
    outcome = replay(scenario)
    if outcome.skipped:
        pytest.skip(outcome.skipped)

    assert outcome.failures == ()


def test_ids_are_unique() -> None:
    """A failing id names one scenario."""
    ids = [scenario["id"] for scenario in SCENARIOS]

    assert len(ids) == len(set(ids))


def test_runner_prints_failures_and_totals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong expectation and a kind without adapter are printed, and the exit code says so."""
    (tmp_path / "wrong.yaml").write_text(
        "- {id: good, kind: priority_deque, steps: [{add: a, expect: {content: [a]}}]}\n"
        "- {id: bad, kind: priority_deque, steps: [{add: a}, {add: b, expect: {content: [b, a]}}]}\n"
        "- {id: strange, kind: no_such_kind, steps: []}\n"
    )

    code = main([str(tmp_path)])

    assert code == 1
    assert capsys.readouterr().out.splitlines() == [
        "bad: step 1: content: expected ['b', 'a'], got ['a', 'b']",
        "strange: step -: expected an adapter for kind no_such_kind, got none",
        "1 passed, 2 failed, 0 skipped",
    ]


def test_runner_accepts_single_files_and_succeeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON is YAML, too; all passed is exit code 0."""
    (tmp_path / "one.json").write_text('[{"id": "x", "kind": "priority_deque", "steps": [{"poll": true}]}]')

    assert main([str(tmp_path / "one.json")]) == 0
    assert capsys.readouterr().out == "1 passed, 0 failed, 0 skipped\n"


@pytest.mark.parametrize(("content", "message"), [(None, "no such file"), ("{", "one.yaml"), ("- 1", "not a list")])
def test_runner_names_what_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, message: str
) -> None:
    """A missing or broken file is one line, and exit code 2."""
    path = tmp_path / "one.yaml"
    if content is not None:
        path.write_text(content)

    assert main([str(path)]) == 2
    assert message in capsys.readouterr().err
