"""Inputs that nobody sends, for everything that reads what others have written."""
