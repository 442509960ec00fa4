"""The command line of a coordinator: layers of settings, which wins, and what is refused."""

from __future__ import annotations

import io
import json

import pytest

from snapline.coordinator.coordinator_config import parse
from snapline.dataflow.config import CHECKPOINTS_DIRECTORY, HEARTBEAT_INTERVAL, SECURITY_TOKEN, ConfigurationError

NOTHING = io.StringIO("")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_nothing_given():
    """The defaults of the settings."""
    config = parse([], {}, NOTHING)
    assert (config.bind, config.metrics_port, config.sidecar) == ("127.0.0.1:6123", -1, False)
    assert config.log_level == "INFO"


def test_the_stronger_layer_wins(tmp_path):
    """File, environment, -D, and options with a name of their own."""
    file = tmp_path / "settings.toml"
    file.write_text('[heartbeat]\ninterval = "1 s"\ntimeout = "9 s"\n[execution.checkpointing]\ndir = "/file"\n')
    environment = {"SNAPLINE_CONF_heartbeat__timeout": "8 s", "SNAPLINE_CONF_log__level": "DEBUG"}
    arguments = [
        "--config",
        str(file),
        "-D",
        "heartbeat.interval=2 s",
        "--checkpoint-dir",
        "/named",
        "--bind",
        "127.0.0.1:0",
    ]
    config = parse(arguments, environment, NOTHING)
    assert config.configuration.get_option(HEARTBEAT_INTERVAL) == 2000
    assert config.configuration["heartbeat.timeout"] == "9 s"
    assert config.configuration.get_option(CHECKPOINTS_DIRECTORY) == "/named"
    assert config.bind == "127.0.0.1:0"
    assert config.log_level == "DEBUG"


def test_a_sidecar_gets_its_settings_and_secret_from_its_parent():
    """Through its standard input: a command line can be read by everybody."""
    told = {"settings": {"security.auth.token": "open sesame"}, "failures_are_told": True}
    config = parse(["--sidecar", "--status-fd", "7"], {}, io.StringIO(json.dumps(told) + "\n"))
    assert config.configuration.get_option(SECURITY_TOKEN) == "open sesame"
    assert (config.sidecar, config.status_fd, config.failures_are_told) == (True, 7, True)
    assert "sesame" not in repr(config)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--sidecar"], "--sidecar is for processes that send their settings"),
        (["-D", "heartbeat.interval"], "give KEY=VALUE"),
        (["-D", "heartbeat.intervall=1 s"], r"unknown setting 'heartbeat.intervall'.*heartbeat.interval.*-D"),
        (["-D", "heartbeat.interval=soon"], r"heartbeat.interval.*soon"),
        (["--log-level", "loud"], r"log.level.*--log-level"),
        (["--config", "missing.toml"], r"cannot read missing.toml"),
    ],
)
def test_what_is_wrong_is_named_with_its_origin(arguments, error):
    """One line, with the way out."""
    with pytest.raises(ConfigurationError, match=error):
        parse(arguments, {}, NOTHING)
