"""The command `snapline config`: all settings, and where each is from."""

from __future__ import annotations

import json
import os

import click

from snapline.commands.printing import echo, print_table
from snapline.dataflow.config import OPTIONS, canonical_key, is_secret
from snapline.runtime.settings import default_layers, resolve


@click.command()
@click.option("--output", "-o", type=click.Choice(["table", "json"]), default="table")
def config(output: str) -> None:
    """All settings: value, where it is from, what it does."""
    layers = default_layers(os.environ)
    resolve(layers)
    layers = {canonical_key(key): setting for key, setting in layers.items()}
    rows = []
    for key, option in sorted(OPTIONS.items()):
        setting = layers.get(key)
        value = setting.value if setting else option.default
        rows.append(
            {
                "key": key,
                "value": "***" if is_secret(key) and value else value,
                "origin": setting.origin if setting else "default",
                "description": option.description,
            }
        )
    if output == "json":
        echo(json.dumps(rows, indent=2))
        return
    print_table(("KEY", "VALUE", "FROM", "WHAT IT DOES"), (list(row.values()) for row in rows))
