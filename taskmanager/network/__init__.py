"""The data plane of a TaskManager: channels, which are pure, and Arrow Flight between processes."""
