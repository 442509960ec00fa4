"""What runs in a Spark executor: tasks, their state, their network and their snapshots."""
