"""The JobManager process: coordinates checkpoints, executes jobs, hands out slots."""

if __name__ != "snapline.coordinator":
    raise ImportError(
        "coordinator is a part of Snapline, and snapline its only name in Python: import snapline.coordinator"
    )
