"""What the image installs, and what is known of it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from deploy.supply_chain import LOCK, Component, bill_of_materials, components, main

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
    assert re.search(r"^ARG BASE=python:3\.11\S*@sha256:[0-9a-f]{64}$", dockerfile, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)) == {"${BASE}"}


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


@pytest.fixture
def service() -> Iterator[tuple[str, list[Any]]]:
    """A server that speaks OSV's batch query, and knows one vulnerable version; what it was asked."""
    asked: list[Any] = []

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"])
            known = [{"vulns": [{"id": "X-1"}]} if each["package"]["name"] == "grpcio" else {} for each in asked]
            body = json.dumps({"results": known}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the base class's name
            """Write no line."""

    server = HTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/querybatch", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_known_vulnerabilities_are_named(service: tuple[str, list[Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """Every pinned version is asked about at once."""
    url, asked = service

    assert 1 == main(["vulnerabilities", "--service", url])
    lines = capsys.readouterr().out.splitlines()
    assert [True, False] == [line.startswith("grpcio ") and line.endswith(": X-1") for line in lines]
    assert f"{len(components())} packages asked about, 1 with known vulnerabilities" == lines[-1]
    assert [(each.name.lower(), each.version) for each in components()] == [
        (each["package"]["name"], each["version"]) for each in asked
    ]


def test_a_service_that_does_not_answer_is_no_clean_bill(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and an exit code of its own."""
    assert 2 == main(["vulnerabilities", "--service", "http://127.0.0.1:9/none"])
    printed = capsys.readouterr()
    assert "" == printed.out
    assert "could not be asked" in printed.err and "nothing is known of" in printed.err
