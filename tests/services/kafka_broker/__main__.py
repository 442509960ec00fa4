"""The test broker as a process of its own, until it is interrupted: `python -m tests.services.kafka_broker --nodes
3`."""

from __future__ import annotations

import argparse
import signal
import tempfile
from pathlib import Path

from tests.services.kafka_broker import KafkaBroker


def main() -> None:
    """Print the address, and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=None, help="keeps the journal; default is a temporary one")
    options = parser.parse_args()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="kafka-"))
    with KafkaBroker(directory, nodes=options.nodes) as broker:
        print(broker.bootstrap, flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
