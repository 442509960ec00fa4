"""What `snapline config` shows of a setting, and where it says that the value is from."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from snapline.commands.config_command import config


def test_a_setting_under_its_other_name_is_shown_with_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts under either name, and was shown as if it were not set."""
    variable = "SNAPLINE_CONF_state__backend__local_recovery"
    monkeypatch.setenv(variable, "true")
    shown = {row["key"]: row for row in json.loads(CliRunner().invoke(config, ["-o", "json"]).output)}
    found = shown["execution.state-recovery.from-local"]
    assert (found["value"], found["origin"]) == ("true", f"environment variable {variable}")
