"""Real servers for tests, started and stopped by fixtures, on the loopback device and free ports."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

SPARK_CONF = Path(getattr(find_spec("pyspark"), "origin", None) or "/nowhere/__init__.py").parent / "conf"
"""For SPARK_CONF_DIR: what it is where nobody has set it, a directory that the installed PySpark does not have."""
