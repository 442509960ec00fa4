"""What `deploy/` gives to a service manager, a container engine and a Kubernetes cluster: as far as a machine without them can tell."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from runtime.settings import from_environment, from_toml, resolve

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
HELM = DEPLOY / "helm" / "snapline"
RELEASE = {"Name": "night", "Namespace": "streams"}


def rendered(template: Path) -> list[dict]:
    """The documents of a Helm template; ours use nothing of its language but values."""
    values = yaml.safe_load((HELM / "values.yaml").read_text())

    def value(match: re.Match[str]) -> str:
        kind, _, path = match[1].partition(".")
        found = RELEASE if kind == "Release" else values
        for part in path.split("."):
            found = found[part]
        return str(found)

    text = re.sub(r"\{\{ \.(\S+) \}\}", value, template.read_text())
    assert "{{" not in text
    return list(yaml.safe_load_all(text))


TEMPLATES = sorted((HELM / "templates").glob("*.yaml"))
OBJECTS = {(found["kind"], found["metadata"]["name"]): found for path in TEMPLATES for found in rendered(path)}
COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def commands() -> dict[str, list[str]]:
    """Every command line of ours that a deployment runs."""
    found = {
        f"compose {name}": service["command"]
        for name, service in COMPOSE["services"].items()
        if "snapline" in service.get("command", [""])[0]
    }
    for unit in UNITS:
        (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
        found[unit.name] = shlex.split(line)
    for (kind, name), manifest in OBJECTS.items():
        if kind in ("StatefulSet", "Deployment"):
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            found[f"{kind} {name}"] = container["command"]
    return found


COMMANDS = commands()


def test_there_are_commands_of_every_kind():
    """Compose, systemd and Helm each start coordinators and TaskManagers."""
    for where in ("compose", "snapline-", "StatefulSet", "Deployment"):
        assert any(name.startswith(where) for name in COMMANDS)


@pytest.mark.parametrize("where", COMMANDS)
def test_every_command_is_one_of_ours_with_options_that_it_has(where):
    """Against the help of the command itself."""
    _, subcommand, *arguments = COMMANDS[where]
    module = ["-m", "coordinator"] if subcommand == "coordinator" else ["-m", "snapline.cli", subcommand]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *module, "--help"], capture_output=True, text=True, check=True, cwd=ROOT, env=environment
    )
    for option in arguments:
        assert not option.startswith("-") or re.search(rf"{re.escape(option)}\b", done.stdout), option


@pytest.mark.parametrize("path", ["docker/snapline.toml", "systemd/snapline.toml"])
def test_settings_files_are_accepted(path):
    """Every key is known and every value is readable."""
    assert resolve(from_toml(DEPLOY / path))


def test_settings_of_the_chart_are_accepted(tmp_path):
    """As the configuration map gives them."""
    data = OBJECTS["ConfigMap", "night-config"]["data"]
    (tmp_path / "snapline.toml").write_text(data["snapline.toml"])
    configuration = resolve(from_toml(tmp_path / "snapline.toml"))
    assert "night" in str(dict(configuration.items()))
    for line in data["spark-defaults.conf"].splitlines():
        assert re.fullmatch(r"spark\.\S+ +\S+", line)


def test_environment_variables_are_settings():
    """Those of Compose and of the chart."""
    names = set(COMPOSE["x-snapline"]["environment"])
    for (kind, _), manifest in OBJECTS.items():
        if kind in ("StatefulSet", "Deployment"):
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            names.update(entry["name"] for entry in container["env"])
    ours = {name: "secret" for name in names if name.startswith("SNAPLINE_CONF_")}
    assert ours
    assert resolve(from_environment(ours))


def test_references_between_the_objects_of_the_chart_hold():
    """Service accounts, configuration maps and selectors name what is there."""
    account = OBJECTS["Deployment", "night-taskmanagers"]["spec"]["template"]["spec"]["serviceAccountName"]
    assert ("ServiceAccount", account) in OBJECTS
    binding = OBJECTS["RoleBinding", "night-executors"]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in OBJECTS
    assert {("ServiceAccount", subject["name"]) for subject in binding["subjects"]} <= set(OBJECTS)
    for (kind, name), manifest in OBJECTS.items():
        if kind in ("StatefulSet", "Deployment"):
            spec = manifest["spec"]
            labels = spec["template"]["metadata"]["labels"]
            assert spec["selector"]["matchLabels"].items() <= labels.items()
            assert OBJECTS["Service", name]["spec"]["selector"].items() <= labels.items()
            for volume in spec["template"]["spec"]["volumes"]:
                assert ("ConfigMap", volume["configMap"]["name"]) in OBJECTS


def test_the_image_copies_what_is_there_and_all_of_the_product():
    """COPY lines of the Dockerfile against the tree and against what the package contains."""
    lines = re.findall(r"^COPY (?!--from)(.*)$", (DEPLOY / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    sources = {source for line in lines for source in line.split()[:-1]}
    assert all((ROOT / source).exists() for source in sources)
    assert {"protos", "dataflow", "runtime", "coordinator", "taskmanager", "snapline"} <= sources


def test_compose_files_refer_to_what_is_there():
    """Build context, Dockerfile, mounted files, volumes and dependencies."""
    directory = DEPLOY / "docker"
    build = COMPOSE["x-snapline"]["build"]
    context = (directory / build["context"]).resolve()
    assert context == ROOT
    assert (context / build["dockerfile"]).exists()
    for service in COMPOSE["services"].values():
        assert set(service.get("depends_on", ())) <= set(COMPOSE["services"])
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (directory / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_are_what_systemd_takes(unit, tmp_path):
    """Verified by systemd itself, with a program in the place of ours."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/snapline/bin/snapline", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if unit.name in line]
    assert ours == []


def test_spark_submit_says_what_it_needs(tmp_path):
    """Without a job, a master or Spark: one text, no traceback, nothing started."""
    script = DEPLOY / "spark_submit.sh"
    path = f"{Path('/usr/bin')}:{Path('/bin')}"

    def start(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        given = {"PATH": path, **environment}
        return subprocess.run(["bash", str(script), *arguments], capture_output=True, text=True, check=False, env=given)

    assert "MASTER=yarn" in start().stderr
    assert "set SPARK_SUBMIT" in start("job.py", MASTER="local").stderr
    submit = tmp_path / "spark-submit"
    submit.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    submit.chmod(0o755)
    assert "MASTER names the Spark master" in start("job.py", SPARK_SUBMIT=str(submit)).stderr
    done = start("job.py", "--input", "x", SPARK_SUBMIT=str(submit), MASTER="yarn", EXECUTORS="7")
    assert done.stdout.splitlines()[:4] == ["--master", "yarn", "--conf", "spark.executor.instances=7"]
    assert done.stdout.splitlines()[-3:] == ["job.py", "--input", "x"]
