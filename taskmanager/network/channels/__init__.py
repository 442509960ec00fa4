"""The pure part of the network: subpartitions, gates, channels, credit."""
