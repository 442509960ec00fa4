"""A generator with a master hook that writes down, in a file, how it is called, and fails where a file tells it to."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from snapline.connectors.builtin.generator import GeneratorSource
from snapline.dataflow.api.master_hooks import MasterTriggerRestoreHook, WithMasterCheckpointHook


class JournalHook(MasterTriggerRestoreHook[dict[str, int]]):
    """Its state is the number of calls to `trigger_checkpoint` over all lives."""

    serializer_version = 7

    def __init__(self, journal: Path, identifier: str) -> None:
        self._journal = journal
        self._identifier = identifier
        self._triggers = 0

    @property
    def identifier(self) -> str:
        return self._identifier

    def trigger_checkpoint(self, checkpoint_id: int, timestamp_ms: int) -> dict[str, int]:
        self._note("trigger", checkpoint_id)
        self._triggers += 1
        return {"triggers": self._triggers}

    def restore_checkpoint(self, checkpoint_id: int, state: dict[str, int] | None) -> None:
        self._note("restore", checkpoint_id, state)
        self._triggers = 0 if state is None else state["triggers"]

    def reset(self) -> None:
        self._note("reset")

    def close(self) -> None:
        self._note("close")

    def serialize(self, state: dict[str, int]) -> bytes:
        return json.dumps(state).encode()

    def deserialize(self, version: int, data: bytes) -> dict[str, int]:
        assert version == 7
        return dict(json.loads(data))

    def _note(self, *what: Any) -> None:
        with self._journal.open("a") as file:
            file.write(json.dumps(what) + "\n")
        if Path(f"{self._journal}.fail-{what[0]}").exists():
            raise ConnectionError(f"told to fail: {what[0]}")


class HookedGenerator(GeneratorSource, WithMasterCheckpointHook):
    """GeneratorSource with a JournalHook."""

    def __init__(self, journal: Path, identifier: str = "journal", **options: Any) -> None:
        super().__init__(**options)
        self.journal = str(journal)
        self.identifier = identifier

    def create_master_trigger_restore_hook(self) -> MasterTriggerRestoreHook[Any]:
        return JournalHook(Path(self.journal), self.identifier)


class DeadlyGenerator(HookedGenerator):
    """One whose hook ends the process that makes it, once a file is there."""

    def create_master_trigger_restore_hook(self) -> MasterTriggerRestoreHook[Any]:
        if Path(self.journal).exists():
            os._exit(9)
        return JournalHook(Path(f"{self.journal}.journal"), self.identifier)


def calls_in(journal: Path) -> list[list[Any]]:
    """What the hook was called for, in order."""
    return [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
