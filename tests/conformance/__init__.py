"""The scenarios of Flink's checkpointing tests, replayed against our components."""
