"""Keys of Redis, through the redis library."""
