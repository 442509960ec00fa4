"""Which coordinator a command has to do with, how it prints, and the options that say so."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from google.protobuf.message import Message

from snapline.client import ClusterClient
from snapline.commands.printing import echo, print_table
from snapline.dataflow.config import (
    COORDINATOR_ADDRESS,
    HA_TYPE,
    SECURITY_TOKEN,
    SECURITY_TOKEN_FILE,
    Configuration,
    ConfigurationError,
)
from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.wire.message_json import message_as_dict
from snapline.runtime.absolute_paths import path_to_send
from snapline.runtime.settings import Setting, default_layers, resolve


class Target:
    """Which coordinator, and how to print."""

    def __init__(self, coordinator: str, token: str, output: str) -> None:
        layers = default_layers(os.environ)
        given = {}
        ha = layers.get(HA_TYPE.key)
        if coordinator and ha is not None and ha.value.strip().lower() == "zookeeper":
            raise ConfigurationError(
                f"--coordinator {coordinator} contradicts {HA_TYPE.key} = zookeeper (from {ha.origin}), which says who leads: leave one of "
                "them out (SNAPLINE_CONF_high_availability__type=NONE for this command)"
            )
        if coordinator:
            given[COORDINATOR_ADDRESS.key] = Setting(coordinator, "--coordinator")
        if token:
            given |= token_instead(token, layers)
        self.configuration: Configuration = resolve(layers, given)
        self.as_json = output == "json"

    def client(self) -> ClusterClient:
        """A connection to the coordinator: the one that was configured, else the one beside a driver of this user.
        Raises SnaplineError where several run so."""
        from snapline.beside_drivers import running

        known = running()
        address = self.configuration.get(COORDINATOR_ADDRESS.key, "")
        if not address and self.configuration.get_option(HA_TYPE) != "zookeeper" and known:
            if len(known) > 1:
                named = ", ".join(f"-m {each.address} (driver {each.pid})" for each in known)
                raise SnaplineError(f"{len(known)} jobs run beside their drivers here: say which with {named}")
            address = known[0].address
            line = f"using the coordinator at {address}, beside driver {known[0].pid}; -m HOST:PORT names another one"
            echo(line, err=True)
        values = {COORDINATOR_ADDRESS.key: address} if address else {}
        tokens = [each.token for each in known if each.address == address]
        has_token = any(self.configuration.get_option(each) for each in (SECURITY_TOKEN, SECURITY_TOKEN_FILE))
        if tokens and not has_token:
            values[SECURITY_TOKEN.key] = tokens[0]
        return ClusterClient.from_configuration(self.configuration.with_values(values))

    def show(self, messages: Sequence[Message], columns: Sequence[str], row: Callable[[Any], Sequence[str]]) -> None:
        """Print messages, one row each."""
        if self.as_json:
            dicts = [message_as_dict(m) for m in messages]
            echo(json.dumps(dicts, indent=2))
            return
        print_table(columns, map(row, messages))


def token_instead(token: str, layers: Mapping[str, Setting]) -> dict[str, Setting]:
    """The settings of `--token`, which counts instead of a file that the settings before name."""
    no_file = {SECURITY_TOKEN_FILE.key: Setting("", "--token")} if SECURITY_TOKEN_FILE.key in layers else {}
    return {SECURITY_TOKEN.key: Setting(token, "--token"), **no_file}


def with_coordinator(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every command that has to do with a coordinator. Those that answer nothing themselves have
    only these."""

    @click.option("--coordinator", "-m", default="", help="host:port (setting jobmanager.rpc.address)")
    @click.option("--token", default="", help="shared secret (setting security.auth.token)")
    @functools.wraps(command)
    def wrapped(coordinator: str, token: str, output: str = "table", **others: Any) -> None:
        command(Target(coordinator, token, output), **others)

    return wrapped


def with_target(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that every command has which answers."""
    return click.option("--output", "-o", type=click.Choice(["table", "json"]), default="table")(
        with_coordinator(command)
    )


def absolute(path: str) -> str:
    """A relative path is one of this directory; none stays none."""
    return path if not path or "://" in path else str(path_to_send(path))


def time_text(timestamp_ms: int) -> str:
    """A moment in UTC; a dash for none."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if timestamp_ms else "-"
