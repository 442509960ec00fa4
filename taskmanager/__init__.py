"""What runs in a Spark executor: tasks, their state, their network and their snapshots."""

if __name__ != "snapline.taskmanager":
    raise ImportError(
        "taskmanager is a part of Snapline, and snapline its only name in Python: import snapline.taskmanager"
    )
