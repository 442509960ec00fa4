"""Unit tests of the asynchronous part of snapshots."""
