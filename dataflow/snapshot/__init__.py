"""The format of snapshots: handles, state files, in-flight data, and the evolution of state."""
