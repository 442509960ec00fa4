"""`snapline taskmanagers drain`: a TaskManager gets no new tasks, and its jobs leave it.

That may wait for slots elsewhere, as long as `slot.request.timeout`: what is waited for is said before, and how it is
taken back when somebody does not want to wait.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from snapline.printing import echo

if TYPE_CHECKING:
    from snapline.cli import Target


def drain_task_manager(target: Target, resource_id: str, *, undo: bool) -> None:
    """Drain the TaskManager, or let it have tasks again, and print what was done."""
    with target.client() as client:
        try:
            if not undo and any(each.resource_id == resource_id for each in client.list_task_managers()):
                echo(f"{resource_id} gets no new tasks; its jobs leave it once there are slots elsewhere", err=True)
            moved = client.drain_task_manager(resource_id, undo=undo)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"its jobs still leave it; `snapline taskmanagers drain --undo {resource_id}` lets it have tasks again"
            ) from None
    if target.as_json:
        echo(json.dumps({"taskmanager": resource_id, "draining": not undo, "jobs": moved}))
    elif undo:
        echo(f"{resource_id} gets tasks again")
    else:
        echo(f"nothing runs on {resource_id} any more, it can be stopped; jobs that were moved: {len(moved)}")
