"""Where records go: keys, partitions and rates."""
