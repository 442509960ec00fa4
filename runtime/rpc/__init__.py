"""gRPC: channels, the server, and the dialing side of a connection."""
