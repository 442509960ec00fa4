"""`snapline relay`, or `python -m snapline.runtime.relay.relay_process`: a relay as a process, until SIGTERM or SIGINT.

Errors that a user can act on are one line on standard error and exit code 1. A relay keeps nothing: it may be killed
and started again at any moment, and TaskManagers go through it again when they dial the next time.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from snapline.dataflow.config import LOG_LEVEL, RELAY_ADDRESS, RELAY_BIND_HOST, RELAY_LINGER
from snapline.dataflow.errors import SnaplineError
from snapline.runtime.address_file import write_address
from snapline.runtime.logs import capture_standard_logging, make_logger
from snapline.runtime.open_files import raise_file_limit
from snapline.runtime.rpc.exposure import exposure_warning
from snapline.runtime.settings import Setting, command_line_layers, resolve

STOPPING = frozenset({signal.SIGTERM, signal.SIGINT})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a relay until it is told to stop; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="snapline relay", description="Carry the connections of many TaskManagers to their coordinator on one."
    )
    parser.add_argument("--bind", metavar="HOST:PORT", help="address to listen on (default: relay.rpc.address)")
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file with settings")
    parser.add_argument("-D", dest="settings", metavar="KEY=VALUE", action="append", default=[], help="one setting")
    parser.add_argument("--address-file", metavar="FILE", type=Path, help="write host:port there once it listens")
    parser.add_argument("--insecure", action="store_true", help="listen for everybody, without token and TLS")
    parser.add_argument("--metrics-port", metavar="PORT", type=int, default=-1, help="serve Prometheus metrics there")
    given = parser.parse_args(arguments)
    try:
        layers = command_line_layers(os.environ, given.config, given.settings)
        if given.bind:
            layers.append({RELAY_ADDRESS.key: Setting(given.bind, "--bind")})
        configuration = resolve(*layers)
        bind, bind_host = configuration.get_option(RELAY_ADDRESS), configuration.get_option(RELAY_BIND_HOST)
        warning = exposure_warning("relay", bind, bind_host, configuration, insecure=given.insecure)
    except SnaplineError as error:
        return _refuse(error)
    from snapline.runtime.metrics import MetricsServer
    from snapline.runtime.relay.relay_server import RelayServer
    from snapline.runtime.rpc.security import Security, check_secret

    logger = make_logger("relay", configuration.get_option(LOG_LEVEL))
    capture_standard_logging(logger)
    if warning:
        logger.warning(warning)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # before there are threads: one thread waits for them
    try:
        security = Security.from_configuration(configuration)
        check_secret(security)
    except SnaplineError as error:
        return _refuse(error)
    raise_file_limit()
    relay = RelayServer(security, configuration.get_option(RELAY_LINGER), logger)
    metrics = MetricsServer(relay.samples, logger, security=security)
    try:
        address = relay.start(bind, bind_host)
        logger.info("relay listens", address=address)
        if given.metrics_port >= 0:
            port = metrics.start(bind_host or address.rpartition(":")[0], given.metrics_port)
            logger.info("metrics are served", port=port)
        if given.address_file:
            write_address(given.address_file, address)
        signal.sigwait(STOPPING)
        if given.address_file:
            given.address_file.unlink(missing_ok=True)
    except SnaplineError as error:
        return _refuse(error)
    finally:
        metrics.stop()
        relay.stop()
    return 0


def _refuse(error: Exception) -> int:
    print(f"snapline relay: {error}", file=sys.stderr)  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main())
