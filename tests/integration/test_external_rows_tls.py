"""Programs with rows on a cluster with mutual TLS, whose TaskManagers have one name for all of their addresses."""

from __future__ import annotations

import json
import threading
import tomllib
from itertools import accumulate

import pytest

from examples.external_rows import KEYS, NUMBERS, TOTALS, Files, Numbers, Totals
from snapline.commands.security_commands import EXCHANGE_NAME, make_certificates
from snapline.external import ParticipationRefused, participate
from snapline.runtime.cores.credentials import Role
from tests.services.certificates import why_not
from tests.services.cluster import LocalCluster

UNTIL = 200

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Of each kind of process, as `snapline certificates` makes them."""
    made = make_certificates(tmp_path_factory.mktemp("certificates"), ["127.0.0.1"], 1)
    return {path.parent.name: tomllib.loads(path.read_text()) for path in made}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, settings):
    with LocalCluster(tmp_path_factory.mktemp("cluster"), (), settings["coordinator"]) as cluster:
        cluster.settings.update(settings["taskmanager"])
        cluster.start_task_manager(2)
        yield cluster


def job_of(cluster):
    env = cluster.environment(1, "100 ms")
    numbers = env.from_external("numbers", NUMBERS, uid="numbers")
    numbers.key_by("key").via_external("totals", TOTALS, uid="totals").to_external("files", uid="files")
    return env


def test_rows_go_through_streams_with_certificates_of_both_sides(cluster, settings, tmp_path):
    """Source, operator and sink register with the certificate of a client, and the output is right."""
    assert EXCHANGE_NAME == settings[Role.CLIENT.value]["security.ssl.exchange.hostname"]
    job_id, said = cluster.submit(job_of(cluster), "encrypted"), []

    def take_part(name, task):
        given = {"job": "encrypted", "task_name": name, "coordinator": cluster.address, "retry_pause": 0.05}
        said.append(participate(task, settings=settings[Role.CLIENT.value], **given))

    tasks = {"numbers": Numbers(UNTIL, 0.0), "totals": Totals(), "files": Files(tmp_path / "out")}
    threads = [threading.Thread(target=take_part, args=each, daemon=True) for each in tasks.items()]
    for thread in threads:
        thread.start()
    cluster.client.wait(job_id)
    for thread in threads:
        thread.join()
    assert [f"job 'encrypted' ({job_id}) is FINISHED"] * 3 == said
    rows = [json.loads(line) for file in (tmp_path / "out").glob("[!.]*") for line in file.read_text().splitlines()]
    assert sorted((row["key"], row["number"], row["total"]) for row in rows) == sorted(
        (key, number, total) for key in range(KEYS) for number, total in enumerate(accumulate(range(1, UNTIL + 1)), 1)
    )


@pytest.mark.parametrize("name", ["", "somebody-else"])
def test_a_program_that_expects_another_name_sends_no_row(cluster, settings, name, caplog):
    """It has no setting, or a wrong one: its line names the TaskManager and the setting, and so does a warning."""
    job_id = cluster.submit(job_of(cluster), f"named {name}")
    cluster.follow(job_id, lambda details: details.overview.subtasks_by_state.get("INITIALIZING") == 3)
    given = {"task_name": "totals", "coordinator": cluster.address, "retry_pause": 0.05, "give_up_after": 0.3}
    wrong = {**settings[Role.CLIENT.value], "security.ssl.exchange.hostname": name}
    try:
        with pytest.raises(ParticipationRefused) as refusal:
            participate(Totals(), job=job_id, settings=wrong, **given)
    finally:
        cluster.cancel(job_id)
    for line in (str(refusal.value), caplog.messages[0]):
        assert line.startswith("the TaskManager at 127.0.0.1:")
        assert line.endswith("its certificate has to carry what security.ssl.exchange.hostname says, or its address"), (
            line
        )
