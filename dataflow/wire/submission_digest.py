"""A submission that comes again is known by the digest of its graph.

Secrets and where settings are from are left out, because they do not make another job. A program that is run again may
pickle its functions otherwise: then it is another submission.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from snapline.dataflow.graph.jobgraph import JobGraph
from snapline.dataflow.wire.codec import encode_job_graph


def with_submission_digest(graph: JobGraph) -> JobGraph:
    """The graph with its digest, whatever it said itself.

    >>> from snapline.dataflow.ids import JobID
    >>> one, other = (with_submission_digest(JobGraph(JobID("a" * 32), name, (), ())) for name in ("one", "other"))
    >>> with_submission_digest(one) == one, one.submission_digest == other.submission_digest
    (True, False)
    """
    described = replace(graph.without_secrets(), configuration_origins={}, submission_digest="")
    encoded = encode_job_graph(described).SerializeToString(deterministic=True)
    return replace(graph, submission_digest=hashlib.sha256(encoded).hexdigest())
