"""How many executors, and how many tasks for each step: scaling to a latency at least cost."""
