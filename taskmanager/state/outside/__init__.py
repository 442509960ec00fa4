"""Keyed state on local disk: the RocksDB backend."""
