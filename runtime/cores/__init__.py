"""Cores that both ends of a connection run: heartbeats, registration, leader connections, relaying."""
