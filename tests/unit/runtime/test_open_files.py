"""The limit of open files of a coordinator or relay."""

from __future__ import annotations

import resource

from snapline.runtime.open_files import MAX_OPEN_FILES, raise_file_limit


def test_a_server_opens_as_many_files_as_it_may() -> None:
    """The soft limit of the shell that started a coordinator does not decide how many TaskManagers can connect."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(before[1], MAX_OPEN_FILES)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
