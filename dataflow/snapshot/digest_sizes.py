"""How long the digests of a state file are; apart from what checks them, because who decodes a handle needs no more."""

CHUNK_BYTES = 1 << 20
"""A part of the format: a reader has to cut a blob as its writer did."""
DIGEST_BYTES = 32


def digests_size(blob_bytes: int) -> int:
    """Return how many bytes of digests a blob of so many bytes has."""
    return -(-blob_bytes // CHUNK_BYTES) * DIGEST_BYTES
