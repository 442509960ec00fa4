"""Real servers for tests, started and stopped by fixtures, on the loopback device and free ports."""
