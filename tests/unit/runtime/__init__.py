"""Unit tests of what both processes are built from."""
