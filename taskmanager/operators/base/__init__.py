"""What all operators are built from: their contract, the factory, keys, rows, timers."""
