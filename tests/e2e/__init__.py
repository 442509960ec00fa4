"""Whole jobs, killed and compared with an answer computed without Snapline."""
