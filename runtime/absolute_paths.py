"""Paths that mean the same in every process.

Decides what a relative path and one with `~` stand for, and says in one line what is missing where they stand for
nothing: the working directory may be gone, and a user have no home.
"""

from __future__ import annotations

import os
from pathlib import Path

from snapline.dataflow.errors import SnaplineError
from snapline.dataflow.urls import is_file_url, path_of_file_url


def absolute_path(path: str | os.PathLike[str]) -> Path:
    """A relative path is one of the working directory, and `file:/data` is `/data`. Raises SnaplineError where the
    working directory is gone."""
    text = os.fspath(path)
    try:
        return Path(path_of_file_url(text) if is_file_url(text) else text).absolute()
    except FileNotFoundError as error:
        raise SnaplineError(
            f"nobody knows where {path} is: the working directory of this process is gone; change to one that is there, or "
            "name an absolute path"
        ) from error


def path_of_user(path: str | os.PathLike[str]) -> Path:
    """As `absolute_path`; `~` and `~name` are home directories. Raises SnaplineError for a user who has none."""
    try:
        expanded = Path(path).expanduser()
    except RuntimeError as error:
        raise SnaplineError(
            f"nobody knows where {path} is: that user has no home directory; name it in full"
        ) from error
    return absolute_path(expanded)


def path_to_send(path: str | os.PathLike[str]) -> Path:
    """As `absolute_path`. Raises SnaplineError for one that no message has room for, since its bytes are no UTF-8."""
    found = absolute_path(path)
    try:
        str(found).encode()
    except UnicodeEncodeError as error:
        raise SnaplineError(
            f"cannot send {str(found)!r} to a coordinator: it is no text in UTF-8, as the locale takes it; choose another name, or "
            "a locale of UTF-8"
        ) from error
    return found
