"""Whether predictions hold: known topologies, each run predicted from the others."""
