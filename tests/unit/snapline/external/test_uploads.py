"""What a program writes into files of a checkpoint, and what it says when the checkpoint is given up meanwhile."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from snapline import external as sl_external


@pytest.mark.parametrize("at", [1, 2])
def test_a_checkpoint_that_is_given_up_meanwhile_is_declined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Its directory is deleted while the program writes: the task failed, and with it a savepoint that stopped it."""
    calls, synced = 0, os.fsync

    def given_up(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        synced(descriptor)
        if calls == at:
            shutil.rmtree(tmp_path / "chk-5")

    monkeypatch.setattr(os, "fsync", given_up)
    with pytest.raises(sl_external.CheckpointDeclined, match=r"chk-5/external-1 is gone, as that of a checkpoint is"):
        sl_external.upload(str(tmp_path / "chk-5" / "external-1"), "value.bin", b"weights")


def test_a_name_in_a_directory_that_is_not_there_fails(tmp_path: Path) -> None:
    """It would fail in every checkpoint, so it is no checkpoint that was given up."""
    with pytest.raises(FileNotFoundError):
        sl_external.upload(str(tmp_path / "chk-5" / "external-1"), "sub/value.bin", b"weights")


def test_a_place_that_cannot_be_written_to_fails(tmp_path: Path) -> None:
    """A file in the way is no checkpoint that was given up."""
    (tmp_path / "chk-5").write_text("")
    with pytest.raises(NotADirectoryError):
        sl_external.upload(str(tmp_path / "chk-5" / "external-1"), "value.bin", b"weights")
