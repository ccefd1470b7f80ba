"""Checks of machine and session, and what a run uses."""
