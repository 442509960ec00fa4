"""The data exchange between TaskManagers: streams between the ends of an edge in different processes,
over Arrow Flight, or by the sockets of `snapline.taskmanager.network.host`.

Shell around the pure cores of `snapline.taskmanager.network.channels`. Importing this package imports neither Flight
nor grpc: a Spark worker forks after imports, and a forked grpc does not work.
"""
