"""What the image installs, and what is known of it."""

from __future__ import annotations

import re
from pathlib import Path

from deploy.supply_chain import LOCK, Component, bill_of_materials, components

ROOT = Path(__file__).resolve().parents[3]
DEVELOPMENT_TOOLS = {"hypothesis", "mypy", "pytest", "ruff", "mkdocs-material", "grpcio-tools", "duckdb", "polars"}


def pins(path: Path) -> dict[str, str]:
    """Versions by name."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^ ;\\]+)", path.read_text(), re.MULTILINE))


def test_the_image_installs_what_runs_in_the_versions_that_are_tested() -> None:
    """A lock file of its own, without the tools of development, each version that of the other lock file."""
    runtime, everything = pins(LOCK), pins(ROOT / "requirements.lock")
    dockerfile = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()

    assert {name: everything[name] for name in runtime} == runtime
    assert DEVELOPMENT_TOOLS & set(everything)
    assert not DEVELOPMENT_TOOLS & set(runtime)
    assert "-r requirements-runtime.lock" in dockerfile
    assert "requirements.lock" not in dockerfile


def test_every_licence_is_known() -> None:
    """One that nobody has looked at is an error with the package's name."""
    assert [] == [each.problem for each in components() if each.problem]
    assert "x 1: Proprietary" == Component("x", "1", (), "Proprietary").problem


def test_the_bill_names_every_package_with_its_hashes() -> None:
    """The same for the same lock file, whoever writes it."""
    bill = bill_of_materials(components())

    assert ("CycloneDX", "1.5") == (bill["bomFormat"], bill["specVersion"])
    assert set(pins(LOCK)) == {each["name"] for each in bill["components"]}
    assert all(each["hashes"] and each["purl"].startswith("pkg:pypi/") for each in bill["components"])
    assert bill == bill_of_materials(components())
