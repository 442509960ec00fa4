"""Benchmark programs: each prints machine, versions, median and spread, and one JSON object with --json."""
