"""What holds a job up: figures and stacks in, a few lines for people out."""
