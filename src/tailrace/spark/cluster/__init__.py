"""Executors and clusters: how many there are, and where they come from."""
