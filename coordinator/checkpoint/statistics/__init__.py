"""What is remembered of checkpoints for people: counts, history, summaries, and their form in storage."""
