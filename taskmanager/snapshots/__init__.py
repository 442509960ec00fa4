"""The asynchronous part of snapshots: encoding, segment files, handles, and reading them back."""
