"""The reference page of settings, generated from the one table of them: `python -m snapline.reference >
docs/settings.md`."""

from __future__ import annotations

import sys

from snapline.dataflow.config import OPTIONS

HEAD = """# Settings

Generated from `dataflow/config.py` by `python -m snapline.reference`; a test keeps it true.

Weakest first: a TOML file (`SNAPLINE_CONFIG`, else `snapline.toml` in the working directory), environment variables
(`SNAPLINE_CONF_execution__checkpointing__interval=1s`: two underscores stand for a dot, one for a hyphen), Spark conf (prefix
`spark.snapline.`), the program or command line. `snapline config` shows what is in force and where it comes from. An unknown
key is an error that names the nearest known one.

| key | kind | default | what it does |
| --- | --- | --- | --- |
"""


def render() -> str:
    """Return the page of all settings in Markdown."""
    rows = [
        f"| `{key}` | {option.kind} | {f'`{option.default}`' if option.default else '(none)'} | {option.description} |"
        for key, option in sorted(OPTIONS.items())
    ]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
