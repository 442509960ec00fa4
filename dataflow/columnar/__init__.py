"""Keys and rows in columns: hashing, key groups, partitioning, and how numeric loops are compiled."""
