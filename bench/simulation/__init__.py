"""Discrete-event simulation, for what formulas cannot do."""
