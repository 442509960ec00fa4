"""Unit tests of the examples' parts."""
