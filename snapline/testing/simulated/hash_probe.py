"""A run without faults in another process, whose texts have other hashes: what goes through a set comes in another
order.

Within one process nobody can change the order of a set, so that this is the only way to see whether a job depends
on it. It takes as long as a process takes to start, and is done for jobs only whose functions make sets or call
hash().
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass

from snapline.dataflow.wire.codec import decode_job_graph, encode_job_graph
from snapline.protos import job_pb2
from snapline.testing.simulated.suspicions import depends_on_hashes
from snapline.testing.simulated.user_job import SimulationError, UserJob
from snapline.testing.simulated.user_run import RunOutcome, UserRun, quiet_plan

OTHER_SEED = "20"
WITHIN_SECONDS = 120


@dataclass(frozen=True)
class _Probe:
    """What the other process is told."""

    path: list[str]
    graph: bytes
    uids: list[str]


def run_with_other_hashes(job: UserJob) -> RunOutcome | None:
    """A run of the job in another process; None: its functions cannot depend on hashes, as far as their code says.
    Raises SimulationError when the job cannot be run there."""
    if not any(depends_on_hashes(operator.spec) for operator in job.operators):
        return None
    uids = [operator.uid for operator in job.operators]
    probe = _Probe(sys.path, encode_job_graph(job.graph).SerializeToString(), uids)
    seed = OTHER_SEED if os.environ.get("PYTHONHASHSEED") != OTHER_SEED else "21"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\nfrom {__name__} import main; main()"],
        input=pickle.dumps((probe.path, probe.graph, probe.uids)),
        capture_output=True,
        timeout=WITHIN_SECONDS,
        env={**os.environ, "PYTHONHASHSEED": seed},
        check=False,
    )
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise SimulationError(f"the job cannot be run in another process: {''.join(last)}")
    status, failure, visible, emitted, story = pickle.loads(done.stdout)
    return RunOutcome(
        quiet_plan(job, "hashes"), status, failure, visible, lambda uid: emitted[uid], story, "", Counter(), 0, 0
    )


def main() -> None:
    """Run the job that standard input holds, and write what came of it to standard output."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the job prints is not the answer
    _, graph, uids = pickle.loads(sys.stdin.buffer.read())
    job = UserJob(decode_job_graph(job_pb2.JobGraph.FromString(graph)), (), frozenset())
    outcome = UserRun(job, quiet_plan(job, "reference"), lambda *_: None, lambda _: None).run()
    emitted = {uid: outcome.emitted(uid) for uid in uids}
    with output:
        output.write(pickle.dumps((outcome.status, outcome.failure, outcome.visible, emitted, outcome.story)))
