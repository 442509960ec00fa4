"""What commands, clients and coordinators load before they do anything: each call of `snapline` pays for it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["snapline.cli", "snapline.client", "snapline.coordinator.cluster_entrypoint"])
def test_arrow_is_loaded_by_those_who_handle_batches(module: str) -> None:
    """Nor NumPy, which comes with it: together they are most of what such a call would cost, and 45 MiB of what a
    coordinator holds."""
    program = f"import sys, {module}; print([name for name in ('pyarrow', 'numpy', 'pyspark') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("module", ["snapline.cli", "snapline.client"])
def test_messages_are_loaded_by_those_who_exchange_them(module: str) -> None:
    """They, their codec and the job graph were a third of what `snapline list` costs."""
    program = f"import sys, {module}; print([n for n in ('messages', 'codec') if f'snapline.dataflow.wire.{{n}}' in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
