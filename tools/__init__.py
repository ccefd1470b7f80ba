"""Checks of the source that no library does."""
