"""Reading scenario files, finding the adapter of a kind, replaying one scenario."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.conformance import Skipped
from tests.conformance.format import CASES, STEPS, problems

Scenario = dict[str, Any]
VENDORED = Path(__file__).parent / "scenarios"
SUFFIXES = (".yaml", ".yml", ".json")
ANY = "*"
"""An expectation that leaves its key unchecked."""


class UnreadableScenarios(Exception):
    """A path is missing, or is not a list of scenarios."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one scenario."""

    scenario_id: str
    failures: tuple[str, ...] = ()
    skipped: str = ""


def files_of(paths: Iterable[Path]) -> Iterator[Path]:
    """Scenario files among the paths and below those that are folders, in order."""
    for path in paths:
        if path.is_dir():
            yield from sorted(child for child in path.rglob("*") if child.suffix in SUFFIXES)
        elif path.exists():
            yield path
        else:
            raise UnreadableScenarios(f"{path}: there is no such file or folder")


def scenarios_of(path: Path) -> list[Scenario]:
    """All scenarios of one file."""
    try:
        loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UnreadableScenarios(f"{path}: {error}") from None
    if isinstance(loaded, dict):
        loaded = [loaded]
    if not isinstance(loaded, list) or not all(isinstance(item, dict) and "kind" in item for item in loaded):
        raise UnreadableScenarios(f"{path}: not a list of scenarios (each with at least id and kind)")
    return loaded


def has_adapter(kind: str) -> bool:
    """Whether scenarios of this kind can be replayed."""
    return kind in STEPS or kind in CASES


def replay(scenario: Scenario) -> Outcome:
    """Play one scenario. A missing adapter and an unexpected exception are failures, not errors of the runner."""
    scenario_id, kind = str(scenario.get("id", "?")), str(scenario["kind"])
    if not has_adapter(kind):
        return Outcome(scenario_id, (f"step -: expected an adapter for kind {kind}, got none",))
    adapter = importlib.import_module(f"tests.conformance.kinds.{kind}")
    strange = problems(scenario)
    if strange:
        return Outcome(scenario_id, tuple(strange))
    try:
        return Outcome(scenario_id, tuple(adapter.replay(scenario)))
    except Skipped as skipped:
        return Outcome(scenario_id, skipped=str(skipped) or "skipped")
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        return Outcome(scenario_id, (f"step -: expected no exception, got {type(error).__name__}: {error} ({place})",))


def difference(step: object, key: str, expected: object, got: object) -> str:
    """One failure line (without the id of the scenario)."""
    return f"step {step}: {key}: expected {expected!r}, got {got!r}"
