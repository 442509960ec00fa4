"""The shells of a TaskManager: the actor around the TaskExecutor, the tasks that it runs, and what those need."""
