"""One adapter per kind of scenario, named like the kind."""
