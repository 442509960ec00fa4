"""The relay: a process between many TaskManagers and their coordinator."""
