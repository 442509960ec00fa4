"""Keys to slots: the hash tables behind keyed state."""
