"""Unit tests of the cores of the exchange."""
