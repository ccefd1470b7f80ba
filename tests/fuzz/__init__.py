"""Fuzz targets: long runs of them belong to ``make nightly``, short cuts to the tests."""
