"""The operators that a chain is made of, one per kind of specification. Cores."""
