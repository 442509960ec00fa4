"""The pure part of snapshots: what goes into which segment file, and which local copies are kept."""
