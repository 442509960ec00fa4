"""Unit tests of the coordinator's gRPC side."""
