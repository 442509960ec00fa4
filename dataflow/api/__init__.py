"""The contracts that users implement and hand in: functions, state, sources, sinks, watermarks, windows."""
