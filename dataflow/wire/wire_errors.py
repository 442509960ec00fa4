"""The one error of the wire codec, apart so that every part of the codec can import it."""

from __future__ import annotations


class WireError(Exception):
    """A message that does not say what it has to: names the message, the field and what is wrong with it.

    To blame is the other side: a program of another version, or one that does not follow the published .proto files.
    """
