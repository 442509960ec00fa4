"""Operators whose work is done by programs outside."""
