"""Whether all is well, and if not, why."""
