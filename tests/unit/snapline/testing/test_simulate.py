"""`simulate` finds what users do wrong and nothing else, names the operator, and says what it cannot run."""

from __future__ import annotations

import itertools
import uuid

import polars as pl
import pyarrow as pa
import pytest

import snapline as sl
from snapline.connectors import FileSource, PostgresLookup
from snapline.connectors.builtin.sinks import DiscardingSink
from snapline.testing import SimulationError, simulate
from tests.unit.snapline.testing.planted_mistakes import MISTAKES, OUTSIDE, Transactions, bank_rows, out, rows_of


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(name):
    """Within 200 seeds, in a story that names the operator and the reason."""
    mistake = MISTAKES[name]
    report = simulate(mistake.build, seeds=200, outputs=mistake.outputs, before_each=OUTSIDE.clear, check=False)

    assert report.is_broken, str(report)
    assert f"it begins at operator {mistake.operator!r}" in report.story if mistake.operator else report.story
    assert mistake.reason in report.story


def count(env):
    """A job as it should be."""
    rows_of(env).key_by("shop").count_window(3).aggregate(uid="triples", n=sl.sum("n")).sink_to(
        DiscardingSink(), uid="out"
    )


def test_a_right_job_passes_and_the_report_says_what_has_happened():
    """Every seed has faults, checkpoints are taken, and tasks are started again."""
    report = simulate(count, seeds=12)

    assert report.ok
    assert report.seeds == 12
    assert sum(report.faults.values()) > 12
    assert report.checkpoints > 12
    assert report.restarts > 3
    assert str(report).endswith("the output was always the same")


@pytest.mark.timeout(60)
def test_a_function_that_fails_at_every_start_is_given_up():
    """No row is to blame, so that the job would be restarted for ever; what it said is the answer."""

    class Unreachable(sl.ProcessFunction):
        def open(self, context):
            raise RuntimeError("the model server is not there")

        def process_element(self, row, context):
            yield row

    with pytest.raises(
        SimulationError, match=r"fails without any fault: operator 'scores'.*the model server is not there"
    ):
        simulate(lambda env: rows_of(env).process(Unreachable(), uid="scores").sink_to(DiscardingSink(), uid="out"))


def test_a_right_two_phase_sink_passes():
    """Its commits are repeated, fail before and after they are done, and show each row once."""
    report = simulate(
        lambda env: rows_of(env).add_sink(Transactions(), uid="bank"),
        seeds=12,
        outputs={"bank": bank_rows},
        before_each=OUTSIDE.clear,
    )

    assert report.ok, str(report)


def test_a_transaction_may_carry_its_rows():
    """A sink whose handle grows with each row was told to lose rows, which were looked for under its last handle."""

    class Carried(sl.TwoPhaseCommitSinkFunction):
        def begin_transaction(self):
            return {"name": uuid.uuid4().hex, "rows": []}

        def invoke_transaction(self, transaction, value):
            transaction["rows"] += value.to_pylist()

        def pre_commit(self, transaction):
            pass

        def commit(self, transaction):
            pass

        def abort(self, transaction):
            pass

    report = simulate(lambda env: rows_of(env).add_sink(Carried(), uid="bank"), seeds=6, check=False)
    assert report.ok, str(report)


def test_one_seed_tells_all_of_its_story_and_the_same_each_time():
    """A replay is the same run, and its story has all that has happened."""
    first, second = simulate(count, seed=3), simulate(count, seed=3)

    assert first.story == second.story
    assert "is complete" in first.story


def test_a_failing_seed_is_an_assertion_error_that_says_how_to_replay_it():
    """What pytest shows is the story."""
    mistake = MISTAKES["a buffer that is not snapshotted"]

    with pytest.raises(AssertionError, match=r"(?s)seed (\d+) breaks the job.*replay it: simulate\(..., seed=\1\)"):
        simulate(mistake.build)


def test_a_job_is_rescaled_up_to_its_max_parallelism():
    """More subtasks than key groups there cannot be: it was a ValueError of the simulator."""

    def build(env):
        triples = rows_of(env).key_by("shop").count_window(3).aggregate(uid="triples", n=sl.sum("n"))
        triples.set_max_parallelism(2).sink_to(DiscardingSink(), uid="out")

    assert simulate(build, seeds=20).ok


def test_a_job_of_two_slot_sharing_groups_has_slots_for_both():
    """Also with more subtasks: it waited for slots that the simulated cluster did not have, and was said to hang."""

    def build(env):
        triples = rows_of(env).key_by("shop").count_window(3).aggregate(uid="triples", n=sl.sum("n"))
        triples.slot_sharing_group("heavy").sink_to(DiscardingSink(), uid="out")

    assert simulate(build, seeds=20).ok


def test_inputs_take_the_place_of_sources():
    """Rows, a table, or a list of such, one for each split; a source that never ends needs them."""

    def build(env):
        numbers = env.from_source(sl.GeneratorSource(keys=10), uid="numbers")
        numbers.map(lambda row: {"key": row["key"] + 1}, uid="next").sink_to(DiscardingSink(), uid="out")

    rows = [{"key": n, "value": n} for n in range(10)]
    table = pa.Table.from_pylist(rows)
    for given in (rows, [rows, rows[:3]], table, [table, table[:3]], [rows, table], pl.DataFrame(rows)):
        assert simulate(build, {"numbers": given}, seeds=1).ok


class Forever(sl.SourceFunction):
    """A push-style source without end."""

    def run(self, context):
        while True:
            context.collect({"n": 1})

    def cancel(self):
        """Do nothing, because it asks nobody."""


class Buffering(sl.SinkFunction):
    """A sink that keeps rows of its own."""

    def initialize_state(self, context):
        self.state = context.operator_state_store.get_list_state("rows")

    def snapshot_state(self, context):
        self.state.update([])

    def invoke(self, value):
        """Keep nothing, because nobody asks."""


def endless_rows():
    """Rows without end."""
    return ({"n": n} for n in itertools.count())


def source_of(source):
    return lambda env: out(env.from_source(source, uid="numbers").map(lambda row: row, uid="same"))


def at_least_once(env):
    env.configure("execution.checkpointing.mode", "AT_LEAST_ONCE")
    count(env)


def fails(row):
    raise KeyError("colour")


def looks_up(env):
    """Ask a server that is not there."""
    towns = PostgresLookup("towns", dsn="host=127.0.0.1 port=1", on="shop", columns=["town"])
    out(rows_of(env).async_wait(towns, schema=pa.schema([("shop", pa.string())]), uid="towns"))


WRONG = {
    "a lookup": (looks_up, {}, "operator 'towns' \\(PostgresLookup\\) asks a server, .* answers from memory"),
    "no function": (None, {}, "the first argument is a function that takes the environment"),
    "an empty job": (lambda env: None, {}, "build\\(env\\) has added nothing"),
    "a source without end": (
        source_of(sl.GeneratorSource(keys=10)),
        {},
        "source 'numbers' \\(GeneratorSource\\) has no end, .*inputs=\\{'numbers': \\[...\\]\\}",
    ),
    "a source that looks for files": (
        source_of(FileSource(__file__, format="csv", schema=pa.schema([("n", pa.int64())]))),
        {},
        "'numbers' \\(FileSource\\) looks for its input while the job runs, .*inputs=\\{'numbers': \\[...\\]\\}",
    ),
    "a long source": (source_of(sl.GeneratorSource(rows=10_001, keys=10)), {}, "'numbers' .* has more than 10000 rows"),
    "a generator without end": (count, {"rows": endless_rows()}, "inputs\\['rows'\\] gives more than 10000 rows"),
    "an unknown source": (count, {"row": []}, "no source with this uid, only 'rows'; did you mean 'rows'\\?"),
    "no rows to script": (count, {"rows": 5}, "give a list of rows, batches or a table, not a int"),
    "rows that do not fit": (count, {"rows": [{"shop": 1, "n": "x"}]}, "does not fit the source \\(its columns: shop"),
    "a number that is cut": (count, {"rows": [{"shop": "a", "n": 1.5}]}, "column 'n': 1.5 is no whole number"),
    "at least once": (at_least_once, {}, "simulate compares the output of exactly-once jobs"),
    "a job that fails anyway": (
        lambda env: out(rows_of(env).map(fails, uid="colours")),
        {},
        "fails without any fault: operator 'colours': .*KeyError",
    ),
    "a sink that only its target knows": (
        lambda env: rows_of(env).add_sink(Buffering(), uid="sink"),
        {},
        "sink 'sink' \\(Buffering\\) keeps rows of its own, .*outputs=\\{'sink'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_simulated_is_said_in_one_line(name):
    """The line names the culprit and the way out."""
    build, inputs, said = WRONG[name]

    with pytest.raises(SimulationError, match=said) as raised:
        simulate(build, inputs, seeds=1)

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"inputs": 5}, "simulate: inputs is a dictionary, got 5"),
        ({"inputs": {5: [{"n": 1}]}}, r"inputs\[5\]: the job has no source with this uid"),
        ({"inputs": {"rows": [{"n": 2**70}]}}, r"inputs\['rows'\] does not fit the source"),
        ({"inputs": {"rows": [{"shop": "a", "m": 1}]}}, r"inputs\['rows'\]: row 0 has 'm', which is no column"),
        ({"outputs": 5}, "simulate: outputs is a dictionary, got 5"),
        ({"outputs": {"x": 5}}, r"simulate: outputs\['x'\] is a function that returns rows, got 5"),
        ({"outputs": {"x": lambda: None}}, r"simulate: outputs\['x'\] must return rows, and returned None"),
        ({"before_each": 5}, "simulate: before_each is a function without arguments, got 5"),
        ({"settings": 5}, "simulate: settings is a dictionary, got 5"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_refused(wrong, said):
    """Each was answered by a traceback from the middle of the simulator."""
    with pytest.raises(SimulationError, match=said):
        simulate(count, **wrong)


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"seeds": None}, {"seed": -1}, {"parallelism": "2"}])
def test_a_wrong_number_is_refused(wrong):
    """Numbers are whole, and not too small."""
    with pytest.raises(SimulationError, match=f"simulate: {next(iter(wrong))} must be a whole number, at least"):
        simulate(count, **wrong)
