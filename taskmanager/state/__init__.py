"""Keyed state of one subtask, columnar: keys become dense slots, values live in columns by slot."""
