"""What coordinator and TaskManagers ask of programs outside alike: the version that they speak, and how much of a line
that they say is kept."""

from __future__ import annotations

PROTOCOL_VERSION = 1
"""The version of external.proto. `snapline.external.conversation`, which programs use, has its own."""
MAX_LINE = 1_000
"""Characters of a line that a program says; more are cut off."""
MAX_DETAILS = 20_000
"""Characters of what a program says of a failure; more are cut off."""
