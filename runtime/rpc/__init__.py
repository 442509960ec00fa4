"""gRPC: channels, the server, and the dialing side of a connection."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
"""Early versions of gRPC write a line at level INFO for each connection that ends, into the console of the user."""
