"""Operators that begin a job: sources, event time, watermarks."""
