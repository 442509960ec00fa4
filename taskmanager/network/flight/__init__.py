"""The data exchange between TaskManagers: Arrow Flight streams between the ends of an edge in different processes.

Shell around the pure cores of `snapline.taskmanager.network.channels`. Importing this package imports neither Flight
nor grpc: a Spark worker forks after imports, and a forked grpc does not work.
"""
