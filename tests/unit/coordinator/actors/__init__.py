"""Unit tests of the coordinator's actors."""
