"""The tests; a package, so that ``python -m tests.fuzz.outside`` finds these and no others."""
