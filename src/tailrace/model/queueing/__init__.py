"""Queues and flushes: how long records wait in theory."""
