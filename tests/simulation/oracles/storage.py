"""What lies on the disk when a job has finished: nothing of it, or only what a lost process could not take away."""

from __future__ import annotations

from snapline.testing.simulated.disk import Disk
from snapline.testing.simulated.world import Violation


def check_storage(disk: Disk, nodes: dict[str, bytes], *, strict: bool, owned: tuple[str, ...] = ()) -> None:
    """`nodes`: what is left in ZooKeeper. `owned`: files of the user. `strict`: no process was lost and no operation
    failed, so nothing may be left at all. Raises Violation."""
    left = [path for path, _ in disk.files.list("") if not path.startswith(("ha/leaders/", "savepoints/", *owned))]
    left += [name for name in nodes if name.count("/") != 1 or not name.startswith("pointers/")]
    if strict and left:
        raise Violation(f"{len(left)} files are left behind, such as {left[:5]}")
    graphs = [path for path in left if path.startswith("ha/jobs/")]
    if graphs and strict:
        raise Violation(f"the job is over, and its graph is still there: {graphs}")
