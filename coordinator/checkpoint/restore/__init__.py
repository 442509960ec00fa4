"""What tasks start from: finding the checkpoint, and handing its state to subtasks that may be others than before."""
