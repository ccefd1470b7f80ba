"""Keyed state: kept in the memory of Python workers, exact as of the last committed batch.

Every Python worker imports this package, so it needs the standard library only.
"""
