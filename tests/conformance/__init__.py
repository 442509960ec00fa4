"""The scenarios of Flink's checkpointing tests, replayed against our components."""


class Skipped(Exception):
    """An adapter says that a scenario is about something that is done otherwise here, and why that is allowed."""
