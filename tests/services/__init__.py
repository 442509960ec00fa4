"""Real servers for tests, started and stopped by fixtures, on the loopback device and free ports."""

from __future__ import annotations

from pathlib import Path

SPARK_CONF = Path(__file__).parent / "spark_conf"
"""For SPARK_CONF_DIR. Has `java-opts` only: a Java that lives for seconds spends more on its best compiler, and on the
threads of its collector, than they bring."""
