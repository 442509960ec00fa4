"""Oracles: what must hold of every run, each kind in a file of its own. They watch; they change nothing."""
