"""Unit tests of what a job is."""
