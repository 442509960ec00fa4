"""Under which of its addresses a TaskManager is reached."""

from __future__ import annotations

import pytest

from snapline.dataflow.errors import SnaplineError
from snapline.taskmanager.task_manager_config import host_towards


def test_a_coordinator_that_is_gone_with_its_name_keeps_no_task_manager_from_starting() -> None:
    """Of several, each that is known shows the way."""
    assert host_towards(["no-such-host.invalid:6123", "127.0.0.1:6123"]) == "127.0.0.1"


@pytest.mark.parametrize("addresses", [["no-such-host.invalid:6123"], ["127.0.0.1"], ["127.0.0.1:six"]])
def test_where_no_coordinator_is_known_it_is_said_which(addresses: list[str]) -> None:
    """One line with the address as it was given."""
    with pytest.raises(SnaplineError, match=f"not the address of a coordinator: '{addresses[0]}'"):
        host_towards(addresses)
