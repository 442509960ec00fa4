"""Windows of time, of sessions and of counts, over aggregates and over rows."""
