"""Sources and sinks that need no other system: rows of the program, generated rows, scripts for tests, printing."""
