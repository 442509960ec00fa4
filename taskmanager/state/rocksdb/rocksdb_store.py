"""KeyValueStore over RocksDB, by way of rocksdict: a directory of its own, which goes with the store.

Decides the options (no log of writes, because snapshots are what lasts; filters, so that new keys cost no read; memory
split between write buffers and block cache) and where the directory lies. What a killed process left behind in the same
place is removed by the next one: RocksDB's own file lock says whether somebody still uses it. Views are RocksDB
iterators, which do not move (rocksdict's Snapshot does not hold what its name says for iteration). Mirrors Flink's
RocksDBResourceContainer.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from snapline.dataflow.api.state import StateError
from snapline.taskmanager.state.rocksdb.key_value_store import Lookup

PREFIX = "snapline-rocksdb-"
_ORPHAN_AGE_S = 600
"""A directory that is younger may be one that another process is just creating."""
_BLOCK_BYTES = 4 << 10
_LEAST_BUFFER_BYTES = 1 << 20
_WRITE_ROWS = 4096
"""Writing holds the interpreter's lock: so many rows at a time, that other threads get their turn."""


class RocksDBStore:
    """One RocksDB database in a directory of its own."""

    def __init__(self, directory: str, name: str, memory_bytes: int) -> None:
        """Create it below `directory` (empty: the system's temporary directory), with about so much memory. StateError
        where that is not possible."""
        library = _library()
        base = directory or tempfile.gettempdir()
        try:
            Path(base).mkdir(parents=True, exist_ok=True)
            self.path = tempfile.mkdtemp(prefix=f"{PREFIX}{re.sub(r'[^A-Za-z0-9_.-]', '-', name)[:80]}-", dir=base)
            _remove_orphans(library, self.path)
            self._database = library.Rdict(self.path, _options(library, memory_bytes))
        except Exception as error:
            raise StateError(
                f"state.backend.type is rocksdb, and no database can be created in {base}: {error}; set "
                "state.backend.rocksdb.localdir to a directory with room that can be written"
            ) from error
        self._library = library
        self._is_open = True
        unlogged = library.WriteOptions()
        unlogged.disable_wal = True
        self._unlogged = unlogged
        self._database.set_write_options(unlogged)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""
        found: list[bytes | None] = self._database.get(list(keys))
        return found

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """All of it; deletes first."""
        gone = iter(deletes)
        while some := list(islice(gone, _WRITE_ROWS)):
            batch = self._library.WriteBatch(raw_mode=True)
            for key in some:
                batch.delete(key)
            self._database.write(batch, self._unlogged)
        entries = iter(puts)
        while rows := list(islice(entries, _WRITE_ROWS)):
            batch = self._library.WriteBatch(raw_mode=True)
            put = batch.put
            for key, value in rows:
                put(key, value)
            self._database.write(batch, self._unlogged)

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Forget keys from `begin` up to, but without, `end`."""
        self._database.delete_range(begin, end, self._unlogged)

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `begin` up to, but without, `end`, as they are now."""
        found: Iterator[tuple[bytes, bytes]] = self._database.items(from_key=begin)
        return takewhile(lambda entry: entry[0] < end, found)  # an upper bound of ReadOptions does not outlive them

    def lookup(self) -> Lookup:
        """Values as they are now."""
        iterator = self._database.iter()

        def find(key: bytes) -> bytes | None:
            iterator.seek(key)
            if not iterator.valid() or iterator.key() != key:
                return None
            value: bytes = iterator.value()
            return value

        return find

    def close(self) -> None:
        """Throw everything away. Views that are still being read stay readable."""
        if self._is_open:
            self._database.close()
        self._is_open = False
        shutil.rmtree(self.path, ignore_errors=True)


def _library() -> Any:
    try:
        import rocksdict
    except ImportError as error:
        raise StateError(
            "state.backend.type is rocksdb, and the library rocksdict is not installed on the TaskManager: "
            "pip install 'snapline[rocksdb]', or use hashmap"
        ) from error
    return rocksdict


def _options(library: Any, memory_bytes: int) -> Any:
    """Half of the memory for what is written, half for blocks, their indexes and filters. Files are read through the
    page cache, mapped: a read costs a third of what it does through calls, and the operating system may take the pages
    back."""
    buffer_bytes = max(_LEAST_BUFFER_BYTES, memory_bytes // 6)
    options = library.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(buffer_bytes)
    options.set_max_write_buffer_number(3)
    options.set_compression_type(library.DBCompressionType.lz4())
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_max_background_jobs(2)
    options.set_allow_mmap_reads(True)
    options.set_max_open_files(256)
    options.set_level_zero_slowdown_writes_trigger(64)  # waiting for compaction would hold the interpreter's lock, too
    options.set_level_zero_stop_writes_trigger(256)
    options.set_soft_pending_compaction_bytes_limit(0)
    options.set_hard_pending_compaction_bytes_limit(0)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    blocks = library.BlockBasedOptions()
    blocks.set_block_cache(library.Cache(max(_LEAST_BUFFER_BYTES, memory_bytes // 2)))
    blocks.set_block_size(_BLOCK_BYTES)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    return options


def _remove_orphans(library: Any, own: str) -> None:
    """Directories beside `own` whose process is gone: their lock can be taken."""
    now_s = Path(own).stat().st_mtime
    for found in Path(own).parent.glob(f"{PREFIX}*"):
        try:
            if now_s - found.stat().st_mtime < _ORPHAN_AGE_S:
                continue
            library.Rdict.destroy(str(found))
        except Exception:  # noqa: S112 - somebody uses it, or it is not ours: then it stays
            continue
        shutil.rmtree(found, ignore_errors=True)
