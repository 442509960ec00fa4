"""Unit tests of the TaskExecutor core."""
