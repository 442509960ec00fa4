"""Snapline on Spark: a Java for it, the pool of TaskManagers, the sidecar."""
