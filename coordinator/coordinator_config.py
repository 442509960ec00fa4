"""What a coordinator process is started with: address, settings, and how it reports to whoever started it.

Decides the command line of `python -m snapline.coordinator`. Settings come from the layers of
`snapline.runtime.settings`, then `-D key=value`, then the options that have a name of their own. Secrets do not belong
on a command line: a sidecar gets its settings through its standard input.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from snapline.dataflow.config import (
    CHECKPOINTS_DIRECTORY,
    COORDINATOR_ADDRESS,
    COORDINATOR_BIND_HOST,
    LOG_LEVEL,
    Configuration,
    ConfigurationError,
)
from snapline.runtime.rpc.exposure import exposure_warning
from snapline.runtime.settings import Setting, default_layers, from_options, from_toml, resolve


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """How one coordinator process runs: addresses, files, and the cluster's settings."""

    bind: str = "127.0.0.1:6123"
    """host:port, as others are told; port 0: any."""
    configuration: Configuration = field(default_factory=Configuration)
    address_file: str = ""
    """Written when it listens: host:port and a line end. For launchers that chose port 0."""
    metrics_port: int = -1
    """Where /metrics is served; 0: any port; -1: nowhere."""
    warning: str = ""
    """To be logged at each start; empty: there is none."""
    failures_are_told: bool = False
    """Whether the process that started this one tells its console why tasks fail."""
    sidecar: bool = False
    """Ends when its standard input does, that is, with the process that started it."""
    status_fd: int = -1
    """Open file that gets one JSON line: `{"address": ...}` or `{"error": ...}`."""

    @property
    def log_level(self) -> str:
        """Least level that is logged."""
        return self.configuration.get_option(LOG_LEVEL)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the coordinator's command line."""
    parser = argparse.ArgumentParser(
        prog="snapline coordinator", description="Run a coordinator: it takes jobs, and TaskManagers come to it."
    )
    parser.add_argument("--bind", metavar="HOST:PORT", help="address to listen on (default: jobmanager.rpc.address)")
    parser.add_argument("--checkpoint-dir", metavar="DIR", help="base directory or URL of checkpoints")
    parser.add_argument("--config", metavar="FILE", type=Path, help="TOML file with settings")
    parser.add_argument("-D", dest="settings", metavar="KEY=VALUE", action="append", default=[], help="one setting")
    parser.add_argument("--log-level", metavar="LEVEL", help="DEBUG, INFO, WARNING or ERROR")
    parser.add_argument("--address-file", metavar="FILE", default="", help="write host:port there once it listens")
    parser.add_argument("--insecure", action="store_true", help="listen for everybody, without token and TLS")
    parser.add_argument("--metrics-port", metavar="PORT", type=int, default=-1, help="serve Prometheus metrics there")
    parser.add_argument("--sidecar", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--status-fd", type=int, default=-1, help=argparse.SUPPRESS)
    return parser


def parse(arguments: Sequence[str], environment: Mapping[str, str], standard_input: TextIO) -> CoordinatorConfig:
    """The configuration of this command line. Raises ConfigurationError with one line; exits for --help, as argparse
    does."""
    given = parser().parse_args(list(arguments))
    layers = [default_layers(environment)]
    if given.config:
        layers.append(from_toml(given.config))
    failures_are_told = False
    if given.sidecar:
        from_parent, failures_are_told = _from_parent(standard_input)
        layers.append(from_parent)
    layers.append(from_options(given.settings))
    named = {
        COORDINATOR_ADDRESS.key: (given.bind, "--bind"),
        CHECKPOINTS_DIRECTORY.key: (given.checkpoint_dir, "--checkpoint-dir"),
        LOG_LEVEL.key: (given.log_level, "--log-level"),
    }
    layers.append({key: Setting(value, origin) for key, (value, origin) in named.items() if value})
    configuration = resolve(*layers)
    bind = configuration.get_option(COORDINATOR_ADDRESS)
    bind_host = configuration.get_option(COORDINATOR_BIND_HOST)
    return CoordinatorConfig(
        bind=bind,
        configuration=configuration,
        warning=exposure_warning("coordinator", bind, bind_host, configuration, insecure=given.insecure),
        address_file=given.address_file,
        metrics_port=given.metrics_port,
        failures_are_told=failures_are_told,
        sidecar=given.sidecar,
        status_fd=given.status_fd,
    )


def _from_parent(standard_input: TextIO) -> tuple[dict[str, Setting], bool]:
    """The first line that the parent wrote, a JSON object: settings, and whether the parent says why tasks fail."""
    line = standard_input.readline()
    try:
        told = json.loads(line)
        values, failures_are_told = dict(told["settings"]), bool(told["failures_are_told"])
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(
            "--sidecar is for processes that send their settings through standard input"
        ) from error
    return {
        key: Setting(value, "the process that started this one") for key, value in values.items()
    }, failures_are_told
