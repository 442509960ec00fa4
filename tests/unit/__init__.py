"""Unit tests; mirrors the rooms."""
