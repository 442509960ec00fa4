"""One suite per port, run against each real implementation and its in-memory twin."""
