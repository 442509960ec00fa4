"""Which Snapline this is. Processes understand each other when their minor versions differ by one at most; any
other is rejected at registration."""

VERSION = "0.1.0"
