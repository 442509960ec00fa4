"""A simulated cluster: the real coordinator, tasks and state on simulated clocks, network, storage and processes.

Everything happens on one thread and is decided by one integer seed. `snapline.testing.simulate` runs jobs of users on
it, and the project's own simulator (tests/simulation) adds ZooKeeper, oracles and jobs of its own.
"""
