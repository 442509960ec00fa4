"""Leader election and retrieval, in ZooKeeper and without it."""
