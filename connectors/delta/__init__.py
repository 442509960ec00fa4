"""Tables of Delta Lake, through the deltalake library; no Java."""
