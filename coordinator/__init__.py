"""The JobManager process: coordinates checkpoints, executes jobs, hands out slots."""
