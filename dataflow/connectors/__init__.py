"""Sources and sinks that come with Snapline, and parts to build others from."""
