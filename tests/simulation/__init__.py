"""The real cores over a simulated clock, network, storage and set of processes, from one integer seed."""
