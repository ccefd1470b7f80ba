"""The code that runs inside Python workers: kept light, since every worker imports it."""
