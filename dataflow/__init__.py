"""What a job is: ids, messages, stream elements, key groups, the JobGraph and the contracts that a user implements."""
