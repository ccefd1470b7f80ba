"""Discrete-event simulation, for what formulas do not cover."""
