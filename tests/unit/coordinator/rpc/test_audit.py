"""What the log says of who has asked for what."""

from __future__ import annotations

from typing import Any, cast

from snapline.coordinator.rpc.audit import AuditLog


class Lines:
    """Stands for a logger: what it was told."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def bind(self, **_: str) -> Lines:
        return self

    def info(self, _message: str, **context: Any) -> None:
        self.said.append(context)


def test_refusals_of_one_host_are_told_once_a_second_and_what_was_done_is_told_always() -> None:
    """A flood of jobs that are refused leaves one line a second, which says how many it stands for."""
    now_s = 0.0
    lines = Lines()
    audit = AuditLog(cast(Any, lines), lambda: now_s)
    for port in range(3):
        audit.write("submit", f"mallory at ipv4:10.0.0.9:{port}", "refused: too many jobs")
    audit.write("submit", "alice at ipv4:10.0.0.1:7", "refused: too many jobs")
    audit.write("cancel job", "mallory at ipv4:10.0.0.9:3", "done", job_id="j")
    now_s = 1.0
    audit.write("submit", "ipv4:10.0.0.9:4", "refused: too many jobs")
    assert [(line["who"], line["outcome"], line.get("not_logged_before")) for line in lines.said] == [
        ("mallory at ipv4:10.0.0.9:0", "refused: too many jobs", None),
        ("alice at ipv4:10.0.0.1:7", "refused: too many jobs", None),
        ("mallory at ipv4:10.0.0.9:3", "done", None),
        ("ipv4:10.0.0.9:4", "refused: too many jobs", 2),
    ]
