"""Unit tests of checkpointing inside a task."""
