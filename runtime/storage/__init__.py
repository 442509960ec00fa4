"""The storage port, its implementations, and the probe that says whether a storage can be used."""
