"""Where settings come from, which wins, and what is said about a wrong one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from snapline.dataflow.config import ConfigurationError
from snapline.environment import StreamExecutionEnvironment
from snapline.reference import render
from snapline.runtime.settings import Setting, default_layers, from_environment, from_spark, hand_on, resolve

INTERVAL = "execution.checkpointing.interval"


def test_reference_page_is_up_to_date():
    """docs/settings.md is what the table of settings says."""
    page = Path(__file__).parents[3] / "docs" / "settings.md"

    assert render() == page.read_text(), "run: .venv/bin/python -m snapline.reference > docs/settings.md"


def test_later_layers_win(tmp_path):
    """File, environment, Spark conf, program."""
    file = tmp_path / "snapline.toml"
    file.write_text(
        'execution.checkpointing.interval = "1 s"\nparallelism.default = 1\n[state.backend]\ntype = "hashmap"\n'
    )
    layers = default_layers({"SNAPLINE_CONFIG": str(file), "SNAPLINE_CONF_parallelism__default": "2"})
    spark = from_spark([("spark.snapline.parallelism.default", "3"), ("spark.master", "local")])

    assert {INTERVAL: "1 s", "parallelism.default": "3", "state.backend.type": "hashmap"} == dict(
        resolve(layers, spark)
    )


def test_a_job_says_where_its_settings_are_from(tmp_path, monkeypatch):
    """File, environment, Spark conf and program; a directory that was made absolute is from where it was, and a secret
    leaves nothing in the graph that is stored."""
    file = tmp_path / "snapline.toml"
    file.write_text('execution.checkpointing.dir = "checkpoints"\nsecurity.auth.token = "s"\n')
    monkeypatch.setenv("SNAPLINE_CONFIG", str(file))
    monkeypatch.setenv("SNAPLINE_CONF_parallelism__default", "2")
    environment = StreamExecutionEnvironment.get_execution_environment().configure(INTERVAL, "1 s")
    environment.from_collection([{"x": 1}]).print()
    spark = from_spark([("spark.snapline.state.backend.type", "rocksdb")])
    graph = environment.translate(
        "job", configuration=environment.configuration_with(spark)
    ).job_graph.without_secrets()

    assert graph.configuration_origins == {
        "execution.checkpointing.dir": f"file {file}",
        "parallelism.default": "environment variable SNAPLINE_CONF_parallelism__default",
        "state.backend.type": "Spark conf spark.snapline.state.backend.type",
        INTERVAL: "the program",
    }
    assert set(graph.configuration) == set(graph.configuration_origins)


def test_unknown_setting_names_the_nearest_and_its_origin(tmp_path):
    """The way out is in the message."""
    layers = default_layers({"SNAPLINE_CONF_parallelism__defualt": "2"})

    with pytest.raises(
        ConfigurationError, match=r"did you mean 'parallelism.default'.*SNAPLINE_CONF_parallelism__defualt"
    ):
        resolve(layers)


@pytest.mark.parametrize(
    ("toml", "variables", "line"),
    [
        (
            '"parallelism.default" = 1\n[parallelism]\ndefault = 2\n',
            {},
            r"parallelism.default has two values, as parallelism.default and as parallelism.default: .*snapline.toml",
        ),
        (
            "state.backend.local-recovery = true\nexecution.state-recovery.from-local = false\n",
            {},
            "as state.backend.local-recovery and as execution.state-recovery.from-local: leave one out",
        ),
        (
            "",
            {"SNAPLINE_CONF_parallelism__default": "1", "SNAPLINE_CONF_PARALLELISM__DEFAULT": "2"},
            "as SNAPLINE_CONF_parallelism__default and as SNAPLINE_CONF_PARALLELISM__DEFAULT: leave one out",
        ),
        ("a." * 2000 + "b = 1", {}, "is not valid TOML: tables or arrays within one another without end"),
    ],
)
def test_a_place_that_says_two_values_of_one_setting_is_refused(
    tmp_path: Path, toml: str, variables: dict[str, str], line: str
) -> None:
    """One of them counted, and nobody could tell which; a file without an end was a traceback."""
    file = tmp_path / "snapline.toml"
    file.write_text(toml)
    with pytest.raises(ConfigurationError, match=line):
        default_layers({"SNAPLINE_CONFIG": str(file), **variables})


def test_two_spellings_of_a_setting_that_say_the_same_are_one(tmp_path: Path) -> None:
    """And the environment wins over the file, however each spells it."""
    file = tmp_path / "snapline.toml"
    file.write_text("state.backend.local-recovery = true\nexecution.state-recovery.from-local = true\n")
    layers = default_layers({"SNAPLINE_CONFIG": str(file)})
    assert dict(resolve(layers)) == {"execution.state-recovery.from-local": "true"}
    variables = {"SNAPLINE_CONF_execution__state_recovery__from_local": "false"}
    layers = default_layers({"SNAPLINE_CONFIG": str(file), **variables})
    assert resolve(layers)["execution.state-recovery.from-local"] == "false"


def test_what_a_command_hands_on_replaces_a_variable_however_that_is_spelled() -> None:
    """An option of `snapline run` wins over the environment that it was called in."""
    environment = {"SNAPLINE_CONF_PARALLELISM__DEFAULT": "3", "SNAPLINE_CONF_heartbeat__interval": "1 s"}
    hand_on(environment, "parallelism.default", "2", "--parallelism")
    assert dict(resolve(from_environment(environment))) == {"parallelism.default": "2", "heartbeat.interval": "1 s"}


def test_hyphens_in_environment_variables():
    """One underscore stands for a hyphen, whichever key it is."""
    layers = default_layers({"SNAPLINE_CONF_execution__checkpointing__min_pause": "5s"})

    assert {
        "execution.checkpointing.min-pause": Setting("5s", layers["execution.checkpointing.min-pause"].origin)
    } == layers


def test_file_that_is_not_toml_is_named(tmp_path):
    """Not a traceback."""
    file = tmp_path / "broken.toml"
    file.write_text("this is = = not toml")

    with pytest.raises(ConfigurationError, match=r"broken.toml is not valid TOML"):
        default_layers({"SNAPLINE_CONFIG": str(file)})


def test_a_file_of_somebody_else_in_the_working_directory_is_not_believed(tmp_path, monkeypatch):
    """It could name a coordinator that gets the token of the environment; one that was named is meant."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "snapline.toml"
    file.write_text('jobmanager.rpc.address = "evil.example:6123"')
    assert "jobmanager.rpc.address" in default_layers({})
    file.chmod(0o646)
    with pytest.raises(
        ConfigurationError, match=r"snapline.toml is not read: .* if you trust it, say SNAPLINE_CONFIG="
    ):
        default_layers({})
    assert "jobmanager.rpc.address" in default_layers({"SNAPLINE_CONFIG": str(file)})
    monkeypatch.setattr("os.geteuid", lambda: file.stat().st_uid + 1)
    file.chmod(0o600)
    if file.stat().st_uid:
        with pytest.raises(ConfigurationError, match="is not read"):
            default_layers({})


def test_a_file_that_is_not_utf_8_is_named(tmp_path):
    """As one that is no TOML."""
    file = tmp_path / "snapline.toml"
    file.write_bytes(b'parallelism.default = "\xff"')
    with pytest.raises(ConfigurationError, match=r"snapline.toml is not valid TOML"):
        default_layers({"SNAPLINE_CONFIG": str(file)})


def test_program_refuses_unknown_settings():
    """At the call, not at night."""
    environment = StreamExecutionEnvironment.get_execution_environment()

    with pytest.raises(ConfigurationError, match=r"did you mean 'heartbeat.timeout'"):
        environment.configure("heartbeat.timeuot", "1 s")


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_file_that_others_can_write_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others of another group are others; with a group of its own a user may let it write."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "snapline.toml"
    file.write_text('jobmanager.rpc.address = "evil:1"')
    file.chmod(0o664)
    assert default_layers({})["jobmanager.rpc.address"].value == "evil:1"
    os.chown(file, os.geteuid(), 12345)
    with pytest.raises(ConfigurationError, match="others may write to it"):
        default_layers({})


def test_it_is_the_file_that_is_read_whose_owner_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name may be that of another file a moment later."""
    monkeypatch.chdir(tmp_path)
    mine, other = tmp_path / "snapline.toml", tmp_path / "other"
    mine.write_text("parallelism.default = 1")
    other.write_text('jobmanager.rpc.address = "evil:1"')
    other.chmod(0o666)
    looks = Path.open

    def exchanged(path: Path, *arguments: Any) -> Any:
        other.replace(mine)
        return looks(path, *arguments)

    monkeypatch.setattr(Path, "open", exchanged)
    with pytest.raises(ConfigurationError, match="others may write to it"):
        default_layers({})
