"""One adapter per kind of scenario: `replay(scenario)` returns failure lines."""
