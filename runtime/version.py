"""Which Snapline this is, and which protocol its processes speak with each other.

A TaskManager says both when it registers, and is rejected when the protocol versions differ by more than one. One of a
release that declared no protocol is judged by its release: the minor versions may differ by one.
"""

VERSION = "0.1.0"
PROTOCOL_VERSION = 1
"""Rises by one in a release whose messages mean something else than before to who does not know it. What is only added,
and left out by who does not know it, changes nothing here. So each release still speaks what the one before expects."""
UNDECLARED = 0
"""What a process says of its protocol that knows of none."""


def understand_each_other(version: str, protocol: int, other_version: str, other_protocol: int) -> bool:
    """Whether processes of these releases and protocols work together, so that a cluster can be upgraded one process
    after the other."""
    if UNDECLARED not in (protocol, other_protocol):
        return abs(protocol - other_protocol) <= 1
    parts = [each.split(".")[:2] for each in (version, other_version)]
    if any(len(part) < 2 or not (part[0].isdigit() and part[1].isdigit()) for part in parts):
        return parts[0] == parts[1]
    (major, minor), (other_major, other_minor) = ((int(part[0]), int(part[1])) for part in parts)
    return major == other_major and abs(minor - other_minor) <= 1
