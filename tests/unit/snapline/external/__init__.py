"""Unit tests of the ExecutionGraph and what belongs to it."""
