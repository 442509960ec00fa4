"""Notebooks, with a real kernel: the example, cells that are run again, and interrupts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

EXAMPLE = Path(__file__).parents[2] / "examples" / "notebook.ipynb"
PATIENCE_S = 120
"""A kernel that says nothing for so long has stopped."""


def kernel_environment(tmp_path: Path) -> dict[str, str]:
    """Of a kernel that writes nothing outside of the test's directory."""
    places = {
        name: str(tmp_path / name.lower()) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")
    }
    return {**os.environ, **places}


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in kernel_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    return tmp_path


def data_of(cell: Any, kind: str) -> str:
    """All that a cell shows of this kind."""
    shown = "".join(output.get("data", {}).get(kind, "") for output in cell.outputs)
    return shown + "".join(output.get("text", "") for output in cell.outputs if kind == "text/plain")


def test_the_example_runs_in_a_kernel_and_draws_its_stream_and_job(runtime: Path) -> None:
    """Pictures of both; the last one of the job, which was updated when it had ended, says FINISHED."""
    notebook = nbformat.read(EXAMPLE, as_version=4)
    NotebookClient(notebook, timeout=PATIENCE_S, resources={"metadata": {"path": str(runtime)}}).execute()
    if os.environ.get("SNAPLINE_NOTEBOOK_OUTPUT"):  # to look at it
        nbformat.write(notebook, os.environ["SNAPLINE_NOTEBOOK_OUTPUT"])
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    stream, shown, columns, live, tapped, status, dropped, ended = cells[1:]
    assert "uid odd" in data_of(stream, "text/html") and "<td" in data_of(stream, "text/html")
    assert "4 rows" not in data_of(shown, "text/plain") and "key" in data_of(shown, "text/plain")
    assert data_of(columns, "text/plain") == "['key', 'value']"
    assert data_of(tapped, "text/plain") == "True"
    assert data_of(status, "text/plain") == "'FINISHED'"
    assert int(data_of(dropped, "text/plain")) == 10_000
    for cell in (live, ended):
        assert ">FINISHED</span>" in data_of(cell, "text/html")
    assert "20,000 rows" in data_of(ended, "text/html")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.rare
@pytest.mark.timeout(600)
def test_the_example_runs_on_spark_without_its_local_arguments(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows are dropped there."""
    monkeypatch.setenv("MASTER", "local-cluster[2,2,1024]")
    notebook = nbformat.read(EXAMPLE, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in cells:
        cell.source = cell.source.replace(", local=True", "")
    cells[5].source = f"while job.status != 'RUNNING' and not job.has_ended:\n    pass\n{cells[5].source}"
    assert not any("local=" in cell.source for cell in cells)
    NotebookClient(notebook, timeout=PATIENCE_S, resources={"metadata": {"path": str(runtime)}}).execute()
    columns, status, dropped = cells[3], cells[6], cells[7]
    assert data_of(columns, "text/plain") == "['key', 'value']"
    assert data_of(status, "text/plain") == "'FINISHED'"
    assert int(data_of(dropped, "text/plain")) == 10_000


class Kernel:
    """A kernel in which cells are run, and run again."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client

    def send(self, code: str, cell_id: str = "") -> str:
        """Run a cell; the id of the request."""
        message = self.client.session.msg(
            "execute_request",
            {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False},
            metadata={"cellId": cell_id} if cell_id else {},
        )
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def texts(self, request: str, until: str = "") -> Iterator[str]:
        """What the cell prints, and its error, until it is done or has printed this."""
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE_S)
            content = message["content"]
            if until and until in str(content.get("text")):  # a job's thread may print for another cell
                yield content["text"]
                return
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "status" and content["execution_state"] == "idle":
                return
            text = content.get("text") or content.get("evalue") or content.get("data", {}).get("text/plain", "")
            if text or "ename" in content:
                yield content.get("ename", "") + text

    def run(self, code: str, cell_id: str = "") -> str:
        """All that a cell has to say."""
        return "".join(self.texts(self.send(code, cell_id)))


@pytest.fixture
def kernel(runtime: Path) -> Iterator[Kernel]:
    (runtime / "beside.py").write_text("def tenfold(row):\n    return {'x': row['value'] * 10}\n")
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(runtime))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE_S)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


SET_UP = """
import snapline as sl, beside
from snapline.connectors import DiscardingSink
from snapline.user_modules import modules_beside_script

def endless():
    env = sl.StreamExecutionEnvironment.get_execution_environment()
    rows = env.from_source(sl.GeneratorSource(keys=2, rows_per_second=500, batch_rows=10), uid="numbers")
    rows.map(beside.tenfold, uid="tenfold").inspect(announce, uid="seen").sink_to(DiscardingSink(), uid="out")
    return env

def announce(row, said=[]):
    if not said:
        said.append(row)
        print("flows")
print([module.__name__ for module in modules_beside_script()])
"""


def test_a_cell_that_is_run_again_replaces_its_job_and_an_interrupt_cancels_it(kernel: Kernel) -> None:
    """By the cell where the front end says which one it is, by the job's name elsewhere. Modules beside the notebook
    travel with the job; after an interrupt the kernel goes on. A kernel that is restarted while a job runs in it ends
    with the job, and its cells run anew."""
    assert "['beside']" in kernel.run(SET_UP)
    start = "job = endless().execute_async('replaced', local=True); jobs.append(job)"
    kernel.run("jobs = []")
    assert "is cancelled" not in kernel.run(start, "cell-1")
    assert "job 'replaced' of the last run of this cell is cancelled" in kernel.run(start, "cell-1")
    assert "is cancelled" not in kernel.run("other = endless().execute_async('replaced', local=True)", "cell-2")
    statuses = "print([each.status for each in (*jobs, other)])"
    assert "['CANCELED', " in kernel.run(statuses)
    kernel.run("other.cancel(); jobs[-1].cancel()")
    kernel.run(start)
    assert "is cancelled" in kernel.run(start)
    assert "'CANCELED', 'CANCELED', 'CANCELED', " in kernel.run(statuses)
    kernel.run("jobs[-1].cancel()")

    for waits in (
        "endless().execute('interrupted', local=True)",
        "await endless().execute_async('awaited', local=True)",
    ):
        request = kernel.send(waits)
        said = "".join(kernel.texts(request, until="flows"))
        kernel.manager.interrupt_kernel()
        said += "".join(kernel.texts(request))
        assert "flows" in said
        assert "KeyboardInterrupt" in said or "CancelledError" in said, said
    assert (
        kernel.run("import threading; print(any('task' in t.name.lower() for t in threading.enumerate()))") == "False\n"
    )

    kernel.run("running = endless().execute_async('left', local=True)", "cell-3")
    kernel.manager.restart_kernel()
    kernel.client.wait_for_ready(timeout=PATIENCE_S)
    kernel.run(SET_UP)
    assert "is cancelled" not in kernel.run("running = endless().execute_async('left', local=True)", "cell-3")
    assert "CANCELED" in kernel.run("running.cancel(); print(running.status)")
