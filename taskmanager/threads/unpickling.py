"""What users give to operators, unpickled by one thread of this process after the other.

Unpickling imports the job's modules. When one thread imports a package while another imports one of its modules, and
the package imports that module, too, each waits for the other, and Python ends that with a _DeadlockError for one of
them. Tasks begin at the same time, so it happens. No counterpart in Flink.
"""

from __future__ import annotations

import threading
from typing import Any

from snapline.dataflow.graph.declared_payload import ALL_ALLOWED, LoadingRules, load_payload

UNPICKLING = threading.Lock()


def unpickle_alone(payload: bytes, rules: LoadingRules = ALL_ALLOWED) -> Any:
    """What was pickled, or declared. Raises whatever its modules raise when they are imported, and JobDefinitionError
    for what the rules do not allow."""
    with UNPICKLING:
        return load_payload(payload, rules)
