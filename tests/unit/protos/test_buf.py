"""What buf says of the protos: its standard rules, and whether programs of an earlier Snapline are still understood."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
RELEASED = Path(__file__).with_name("released.binpb")
"""The descriptors that must not break: until there is a release, those that rolling upgrades are tested from."""
BUF = Path(sys.executable).with_name("buf")

pytestmark = pytest.mark.skipif(not BUF.exists(), reason="NO BUF HERE: the extra dev brings it (buf-bin)")


def ask_buf(*arguments: str, directory: Path = ROOT) -> tuple[int, str]:
    """Exit code and findings of buf."""
    command = [str(BUF), *arguments, "--config", str(ROOT / "buf.yaml")]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def copy_protos(directory: Path) -> Path:
    """The protos below another directory, where a test may change them."""
    return Path(shutil.copytree(ROOT / "protos", directory / "snapline" / "protos"))


def test_the_standard_rules_hold():
    """Exceptions stand in buf.yaml, each with its reason."""
    assert (0, "") == ask_buf("lint", ".")


def test_nothing_breaks_a_program_of_the_release():
    """No field, value, message, call or file is gone, renumbered or of another type."""
    assert (0, "") == ask_buf("breaking", ".", "--against", str(RELEASED))


def test_a_field_of_another_number_and_a_badly_named_value_are_found(tmp_path):
    """Both checks can fail."""
    client = copy_protos(tmp_path) / "client.proto"
    text = client.read_text()
    changed = text.replace("string next_page_token = 2;", "string next_page_token = 3;")
    changed = changed.replace("CHECKPOINT_STATUS_UNSPECIFIED", "CHECKPOINT_STATUS_NOTHING")
    assert changed != text
    client.write_text(changed)
    code, findings = ask_buf("breaking", ".", "--against", str(RELEASED), directory=tmp_path)
    assert (100, True) == (code, "next_page_token" in findings)
    code, findings = ask_buf("lint", ".", directory=tmp_path)
    assert (100, True) == (code, "CHECKPOINT_STATUS_NOTHING" in findings)
