"""Checkpoints of one job: when to take one, what belongs to it, when it counts, and how a job starts from it."""
