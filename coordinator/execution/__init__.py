"""Cores that turn a JobGraph into running attempts: graph, deployment, failover, restarts, slots."""
