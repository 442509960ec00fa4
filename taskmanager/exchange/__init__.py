"""The data exchange between TaskManagers: result partitions, input channels, and the Arrow Flight streams between them.

Shell around the pure cores of `taskmanager.network`. Importing this package imports neither Flight nor grpc: a Spark worker
forks after imports, and a forked grpc does not work.
"""
