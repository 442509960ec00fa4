"""The page of a cluster, and the server that serves it: a client of the coordinator like any other."""
