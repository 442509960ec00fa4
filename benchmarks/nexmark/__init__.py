"""Nexmark: an auction house as a stream, and queries over it."""
