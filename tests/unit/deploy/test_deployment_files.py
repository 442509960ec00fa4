"""What `deploy/` gives to a service manager, a container engine and a Kubernetes cluster: as far as a machine without
them can tell."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from snapline.dataflow.config import (
    SECURITY_SSL_CA,
    SECURITY_SSL_CERTIFICATE,
    SECURITY_SSL_EXCHANGE_HOSTNAME,
    SECURITY_SSL_KEY,
    TASKMANAGER_RELAYS,
    Configuration,
)
from snapline.runtime.rpc.live_check import TIMEOUT_SECONDS
from snapline.runtime.rpc.rpc_server import LIVE
from snapline.runtime.settings import from_environment, from_toml, resolve
from tests.unit.deploy.helm_template import render

ROOT = Path(__file__).resolve().parents[3]
TOOLS = Path(sys.executable).parent
DEPLOY = ROOT / "deploy"
HELM = DEPLOY / "helm" / "snapline"
TEMPLATES = sorted((HELM / "templates").glob("*.yaml"))
RELEASE = {"Name": "night", "Namespace": "streams"}


def rendered(relays: int | None = None, *, monitored: bool = False, **settings: Any) -> dict[tuple[str, str], dict]:
    """The objects of the chart, by kind and name; with so many relays, or as many as values.yaml says."""
    values = {**yaml.safe_load((HELM / "values.yaml").read_text()), **settings}
    values["serviceMonitor"]["enabled"] = monitored
    if relays is not None:
        values["relays"]["replicas"] = relays
    templates = {path.name: path.read_text() for path in TEMPLATES}
    texts = [
        render(text, {"Values": values, "Release": RELEASE, "Templates": templates}) for text in templates.values()
    ]
    documents = [document for text in texts for document in yaml.safe_load_all(text)]
    return {(found["kind"], found["metadata"]["name"]): found for found in documents}


OBJECTS = rendered(relays=3, monitored=True, priorityClass="streams")
"""With everything that is optional."""
OPTIONAL = {("Service", "night-relay"), ("StatefulSet", "night-relay"), ("ServiceMonitor", "night")}
TLS = {**yaml.safe_load((HELM / "values.yaml").read_text())["tls"], "enabled": True, "issuer": "streams-ca"}
SECURE = rendered(relays=3, monitored=True, tls=TLS)
"""With TLS, and cert-manager to make the certificates."""
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
    """Compose, systemd and Helm each start coordinators and TaskManagers; systemd and Helm relays, too."""
    assert {(name.partition(" ")[0], command[1]) for name, command in COMMANDS.items()} == {
        ("compose", "coordinator"),
        ("compose", "taskmanagers"),
        ("compose", "list"),
        ("snapline-coordinator.service", "coordinator"),
        ("snapline-relay.service", "relay"),
        ("snapline-taskmanagers.service", "taskmanagers"),
        ("StatefulSet", "coordinator"),
        ("StatefulSet", "relay"),
        ("Deployment", "taskmanagers"),
    }


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_never_gives_up(unit):
    """It does so after five starts within ten seconds, as where ZooKeeper comes up later than a coordinator."""
    before, _, service = unit.read_text().partition("[Service]")
    assert "\nRestart=always\n" in service
    assert "\nStartLimitIntervalSec=0\n" in before


def test_what_others_reach_by_a_hosts_name_listens_on_all_its_addresses():
    """On Debian the name is an address of loopback on the host itself, so that no other one reached it."""
    settings = resolve(from_toml(DEPLOY / "systemd" / "snapline.toml"))
    assert {settings.get(key) for key in ("jobmanager.bind-host", "relay.bind-host")} == {"0.0.0.0"}


@pytest.mark.parametrize("where", COMMANDS)
def test_every_command_is_one_of_ours_with_options_that_it_has(where):
    """Against the help of the command itself."""
    _, subcommand, *arguments = COMMANDS[where]
    module = ["-m", "snapline.coordinator"] if subcommand == "coordinator" else ["-m", "snapline.cli", subcommand]
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


def test_no_deployment_runs_without_a_token():
    """Compose, systemd and Kubernetes refuse to start a process for which there is none."""
    for unit in UNITS:
        assert "\nEnvironmentFile=/etc/snapline/secrets.env\n" in unit.read_text(), unit.name
    for name, service in COMPOSE["services"].items():
        if "snapline" in service.get("command", [""])[0]:
            assert service["environment"]["SNAPLINE_CONF_security__auth__token"].startswith("${SNAPLINE_TOKEN:?"), name
    for (kind, name), manifest in OBJECTS.items():
        if kind in ("StatefulSet", "Deployment"):
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            (token,) = [e for e in container["env"] if e["name"] == "SNAPLINE_CONF_security__auth__token"]
            assert not token["valueFrom"]["secretKeyRef"].get("optional"), name


def settings_of(objects: dict[tuple[str, str], dict], directory: Path) -> Configuration:
    """As the chart's configuration map gives them. Raises ConfigurationError."""
    path = directory / "snapline.toml"
    path.write_text(objects["ConfigMap", "night-config"]["data"]["snapline.toml"])
    return resolve(from_toml(path))


def test_settings_of_the_chart_are_accepted(tmp_path):
    """As the configuration map gives them."""
    assert "night" in str(dict(settings_of(OBJECTS, tmp_path).items()))
    for line in OBJECTS["ConfigMap", "night-config"]["data"]["spark-defaults.conf"].splitlines():
        assert re.fullmatch(r"spark\.\S+ +\S+", line)


def test_the_chart_has_no_relays_unless_asked_for(tmp_path):
    """As values.yaml is: no object of theirs, and no address that somebody would dial in vain; nor anything that needs
    Prometheus' operator."""
    objects = rendered()
    assert set(objects) == set(OBJECTS) - OPTIONAL
    assert set(OBJECTS) >= OPTIONAL
    assert settings_of(objects, tmp_path).get_option(TASKMANAGER_RELAYS) == ""


@pytest.mark.parametrize("relays", [1, 3])
def test_task_managers_know_every_relay_of_the_chart(relays, tmp_path):
    """Each pod of the StatefulSet by its name in the headless service, with the port on which it listens."""
    objects = rendered(relays)
    spec = objects["StatefulSet", "night-relay"]["spec"]
    assert spec["replicas"] == relays
    assert objects["Service", spec["serviceName"]]["spec"]["clusterIP"] == "None"
    port = listening_port(spec)
    assert settings_of(objects, tmp_path).get_option(TASKMANAGER_RELAYS).split(",") == [
        f"night-relay-{i}.{spec['serviceName']}.streams.svc.cluster.local:{port}" for i in range(relays)
    ]


def listening_port(spec: dict) -> int:
    """That of the address to which the command of a StatefulSet binds."""
    (container,) = spec["template"]["spec"]["containers"]
    address = container["command"][container["command"].index("--bind") + 1]
    return int(address.rpartition(":")[2])


@pytest.mark.parametrize("name", [name for kind, name in OBJECTS if kind == "StatefulSet"])
def test_ports_and_probes_are_where_somebody_listens(name):
    """Of the container, of its service, and of what asks whether it is well."""
    spec = OBJECTS["StatefulSet", name]["spec"]
    port = listening_port(spec)
    (container,) = spec["template"]["spec"]["containers"]
    assert port in [published["containerPort"] for published in container["ports"]]
    metrics = int(container["command"][container["command"].index("--metrics-port") + 1])
    published = {each["name"]: each["port"] for each in OBJECTS["Service", spec["serviceName"]]["spec"]["ports"]}
    assert published == {"grpc": port, "metrics": metrics}
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["grpc"] == {"port": port, "service": LIVE}


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
                # besides, empty directories that a root file system which nobody writes to needs
                assert "emptyDir" in volume or ("ConfigMap", volume["configMap"]["name"]) in OBJECTS


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


def test_no_unit_is_allowed_more_than_another():
    """Who they run as, and what is closed to them."""
    keys = ("User", "NoNewPrivileges", "ProtectSystem", "ProtectHome", "PrivateTmp", "LimitNOFILE")
    expected = {"User": "snapline", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes"}
    expected |= {"PrivateTmp": "yes", "LimitNOFILE": "65536"}
    for unit in UNITS:
        lines = dict(re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.MULTILINE))
        assert {key: lines.get(key) for key in keys} == expected, unit.name


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


def test_a_pod_that_spark_has_made_is_an_executor(tmp_path):
    """Spark's driver gives the pod of an executor no command but the word `executor`, and there was none of that name
    in the image; any other command is run as it is."""
    entry = re.search(r'^ENTRYPOINT \["(.*)"\]$', (DEPLOY / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    assert entry is not None
    assert (
        f"COPY deploy/docker/entrypoint.sh /usr/local/bin/{entry[1]}\n"
        in (DEPLOY / "docker" / "Dockerfile").read_text()
    )
    for name, text in {
        "tini": '#!/bin/sh\nprintf "%s\\n" "$@"\n',
        "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    said = {
        "MEMORY": "2g",
        "ID": "3",
        "CORES": "2",
        "POD_IP": "10.0.0.7",
        "POD_NAME": "night-exec-3",
    }
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SPARK_JAVA_OPT_10": "-Dlast=a b",
        "SPARK_JAVA_OPT_2": "-Dfirst=1",
        "SPARK_DRIVER_URL": "spark://driver",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        **{f"SPARK_EXECUTOR_{name}": value for name, value in said.items()},
    }

    def start(*command: str) -> list[str]:
        entrypoint = ["bash", str(DEPLOY / "docker" / "entrypoint.sh")]
        done = subprocess.run([*entrypoint, *command], capture_output=True, text=True, check=True, env=environment)
        return done.stdout.splitlines()

    assert start("snapline", "list") == ["--", "snapline", "list"]
    executor = start("executor")
    assert executor[:2] == ["-s", "--"]
    assert executor[2].endswith("/bin/java")
    assert executor[3:8] == ["-Dfirst=1", "-Dlast=a b", "-Xms2g", "-Xmx2g", "-cp"]
    assert executor[8].endswith("/pyspark/jars/*")
    assert executor[9] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    assert dict(zip(executor[10::2], executor[11::2], strict=True)) == {
        "--driver-url": "spark://driver",
        "--executor-id": "3",
        "--cores": "2",
        "--app-id": "app",
        "--hostname": "10.0.0.7",
        "--resourceProfileId": "0",
        "--podName": "night-exec-3",
    }


def test_pods_have_no_more_rights_than_they_need():
    """Nobody is root, nothing can be gained, the root file system is read only, and what has to be written goes to a
    volume; only Spark's driver talks to Kubernetes."""
    for (kind, name), manifest in OBJECTS.items():
        if kind not in ("StatefulSet", "Deployment"):
            continue
        pod = manifest["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}, name
        assert (pod.get("automountServiceAccountToken") is False) == (kind == "StatefulSet"), name
    assert re.search(r"^USER 10001", (DEPLOY / "docker" / "Dockerfile").read_text(), re.MULTILINE)


def test_the_network_and_drains_are_bounded():
    """The coordinators' port answers pods of the cluster, and one of them is there whatever is drained."""
    budget = OBJECTS["PodDisruptionBudget", "night-coordinator"]["spec"]
    labels = OBJECTS["StatefulSet", "night-coordinator"]["spec"]["template"]["metadata"]["labels"]
    assert (budget["minAvailable"], budget["selector"]["matchLabels"]) == (1, labels)
    control, metrics = OBJECTS["NetworkPolicy", "night-coordinator"]["spec"]["ingress"]
    assert [{"port": listening_port(OBJECTS["StatefulSet", "night-coordinator"]["spec"])}] == control["ports"]
    assert control["from"] and "from" not in metrics


def pods(objects: dict[tuple[str, str], dict]) -> dict[str, dict]:
    """The templates of all pods, by the name of their object."""
    return {
        name: found["spec"]["template"]
        for (kind, name), found in objects.items()
        if "template" in found.get("spec", {})
    }


def test_pods_say_how_much_they_need_how_important_they_are_and_where_they_rather_are_not():
    """Those of one kind on several nodes; without a class of priority none is named."""
    assert {name for name, pod in pods(OBJECTS).items() if pod["spec"].get("priorityClassName") == "streams"} == {
        "night-coordinator",
        "night-relay",
        "night-taskmanagers",
    }
    assert not any("priorityClassName" in pod["spec"] for pod in pods(rendered(relays=1)).values())
    for name, pod in pods(OBJECTS).items():
        (container,) = pod["spec"]["containers"]
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}, name
        if name != "night-taskmanagers":
            spread = pod["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
            assert spread[0]["podAffinityTerm"]["labelSelector"]["matchLabels"] == pod["metadata"]["labels"]


def test_another_configuration_is_another_pod():
    """A rollout takes what was changed; what has nothing to do with the configuration restarts nobody."""

    def checksums(**settings: Any) -> set[str]:
        return {pod["metadata"]["annotations"]["checksum/config"] for pod in pods(rendered(**settings)).values()}

    assert len(checksums()) == 1
    assert checksums() == checksums(priorityClass="streams")
    assert checksums() != checksums(storage="s3://another")


def test_the_service_monitor_reads_every_service_with_metrics():
    """By their label and the name of their port, with a credential."""
    monitor = OBJECTS["ServiceMonitor", "night"]["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    found = {
        n
        for (kind, n), each in OBJECTS.items()
        if kind == "Service" and wanted <= each["metadata"].get("labels", {}).items()
    }
    assert found == {"night-coordinator", "night-relay"}
    (endpoint,) = monitor["endpoints"]
    assert endpoint == {"port": "metrics", "authorization": {"credentials": {"name": "snapline-token", "key": "token"}}}


def test_objects_are_what_the_schemas_of_kubernetes_say(tmp_path):
    """Strictly, so that a word that it does not know is found; ServiceMonitors and Certificates are none of its own."""
    for (kind, name), found in (*OBJECTS.items(), *SECURE.items()):
        if kind not in ("ServiceMonitor", "Certificate"):
            file = tmp_path / f"{kind}-{name}.yaml"
            file.write_text(yaml.safe_dump(found))
            done = subprocess.run([TOOLS / "kubernetes-validate", "--strict", file], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr


def names_in(certificate: str) -> list[str]:
    """The names for which the chart asks cert-manager."""
    names: list[str] = SECURE["Certificate", f"night-{certificate}"]["spec"]["dnsNames"]
    return names


def test_with_tls_every_pod_has_its_certificate_where_its_settings_look(tmp_path):
    """Mounted read-only and readable by the pod's group alone; executors have that of the driver in the same place."""
    configuration = settings_of(SECURE, tmp_path)
    files = [configuration.get_option(each) for each in (SECURITY_SSL_CA, SECURITY_SSL_CERTIFICATE, SECURITY_SSL_KEY)]
    assert [Path(file).name for file in files] == ["ca.crt", "tls.crt", "tls.key"]
    (directory,) = {str(Path(file).parent) for file in files}
    for name, template in pods(SECURE).items():
        (container,) = template["spec"]["containers"]
        (mount,) = [each for each in container["volumeMounts"] if each["name"] == "tls"]
        (volume,) = [each for each in template["spec"]["volumes"] if each["name"] == "tls"]
        assert (mount["mountPath"], mount["readOnly"], volume["secret"]["defaultMode"]) == (directory, True, 0o440)
        kind = name.removeprefix("night-").removesuffix("s")
        assert volume["secret"]["secretName"] == SECURE["Certificate", f"night-{kind}"]["spec"]["secretName"]
    spark = SECURE["ConfigMap", "night-config"]["data"]["spark-defaults.conf"]
    assert f"spark.kubernetes.executor.secrets.snapline-taskmanager-tls  {directory}\n" in spark
    assert names_in("taskmanager") == [configuration.get_option(SECURITY_SSL_EXCHANGE_HOSTNAME)]
    assert not any("tls" in str(found) for found in OBJECTS.values()), "without it nobody waits for a secret"


@pytest.mark.parametrize("kind", ["coordinator", "relay"])
def test_with_tls_pods_are_called_by_the_name_in_their_certificate(kind, tmp_path):
    """What they announce, and where TaskManagers find relays; and a probe that shows a certificate is one of ours."""
    spec = SECURE["StatefulSet", f"night-{kind}"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    environment = {each["name"]: each for each in container["env"]}
    name = environment["HOST"]["value"].replace("$(POD_NAME)", f"night-{kind}-0")
    covered, metrics = names_in(kind)
    assert covered == "*." + name.partition(".")[2]
    if kind == "relay":
        addresses = settings_of(SECURE, tmp_path).get_option(TASKMANAGER_RELAYS).split(",")
        assert addresses[0] == f"{name}:{container['ports'][0]['containerPort']}"
    for probe in ("readinessProbe", "livenessProbe"):
        shell, flag, line = container[probe]["exec"]["command"]
        assert (shell, flag) == ("sh", "-c")
        module = "snapline.runtime.rpc.live_check"
        assert line == f"exec python -m {module} $HOST:{container['ports'][0]['containerPort']}"
        assert container[probe]["timeoutSeconds"] > TIMEOUT_SECONDS
    assert SECURE["StatefulSet", f"night-{kind}"]["spec"]["template"]["metadata"]["annotations"]["prometheus.io/scheme"]
    (endpoint,) = SECURE["ServiceMonitor", "night"]["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["tlsConfig"]["serverName"]) == ("https", metrics)
    reader = SECURE["Certificate", "night-client"]["spec"]["secretName"]
    assert endpoint["tlsConfig"]["keySecret"] == {"name": reader, "key": "tls.key"}


def test_the_image_breaks_no_rule():
    """Those of hadolint; what is let be says why, beside it."""
    done = subprocess.run([TOOLS / "hadolint", DEPLOY / "docker" / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
