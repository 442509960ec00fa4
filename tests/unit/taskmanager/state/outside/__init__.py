"""Tests of the wing of the same name."""
