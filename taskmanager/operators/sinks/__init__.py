"""Operators that end a job: two-phase sinks and sink functions."""
