"""Which Snapline this is. Processes of one minor version understand each other; another one is rejected at
registration."""

VERSION = "0.1.0"
