"""What errors of file systems mean for a user."""

from __future__ import annotations

import pytest

from snapline.connectors.files.filesystems import absolute, advice
from snapline.dataflow.errors import ConnectorError


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "for key 'x/.probe-403-26' in bucket 'b': AWS Error NO_SUCH_BUCKET during Put",
            "check that the bucket exists",
        ),
        ("for key 'part-403' in bucket 'b': AWS Error SLOW_DOWN", "check that it is reachable"),
        ("AWS Error UNKNOWN (HTTP status 403) during HeadObject operation", "check the credentials"),
        ("AWS Error ACCESS_DENIED during Put", "check the credentials"),
    ],
)
def test_a_name_with_a_number_in_it_is_no_refusal(text: str, said: str) -> None:
    """The number of a process stood in a name, and the advice was to check the credentials."""
    assert advice(OSError(text)).startswith(said)


@pytest.mark.parametrize("path", ["/tmp/x\0y", "x\0y", "file:///tmp/x%00y", "s3://bucket/x\0y"])
def test_a_path_with_a_nul_is_refused_where_it_is_given(path: str) -> None:
    """It was an "embedded null byte" of Python, or of Arrow, without a path."""
    with pytest.raises(ConnectorError, match=r"x\\x00y' is no path: it has a character NUL in it"):
        absolute(path)
