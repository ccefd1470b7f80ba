"""Reports of runs, as data, on a terminal and as pictures."""
