"""Unit tests of the Dispatcher core."""
