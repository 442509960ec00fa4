"""Keyed state that memory has no room for, on the local disk: the `rocksdb` backend."""
