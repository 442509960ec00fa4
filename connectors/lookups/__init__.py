"""What look-ups in services share: what has been answered, and for how long it holds."""
