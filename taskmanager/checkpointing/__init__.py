"""Checkpointing inside a task: barrier handlers, the subtask checkpoint coordinator, in-flight data and its
rescaling."""
