"""Variables by which `snapline run` tells a program which snapshot its job starts from."""

RESTORE_VARIABLE = "SNAPLINE_RESTORE_FROM"
"""Set by `snapline run --from-savepoint`."""
ALLOW_NON_RESTORED_VARIABLE = "SNAPLINE_ALLOW_NON_RESTORED_STATE"
CLAIM_VARIABLE = "SNAPLINE_CLAIM_SNAPSHOT"
