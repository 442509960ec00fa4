"""Real servers for tests, started and stopped by fixtures, on the loopback device and free ports."""

from __future__ import annotations

import sys
from pathlib import Path

SPARK_CONF = Path(sys.prefix) / "share" / "snapline" / "java_of_tests" / "conf"
"""For SPARK_CONF_DIR. An empty directory, as `tests/services/spark_java.py` says, which makes it."""
