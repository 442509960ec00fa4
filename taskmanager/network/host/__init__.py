"""The exchange between TaskManagers of one host: sockets of the machine in place of Flight, for the same streams."""
