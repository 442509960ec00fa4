"""Joins: of two streams, in windows, over time, and with a table."""
