"""Operators that call a user's function: keyed, on two inputs, in batches, asynchronous."""
