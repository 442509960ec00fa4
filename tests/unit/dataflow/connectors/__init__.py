"""Unit tests of the connectors."""
