"""Unit tests of the user-facing room."""
