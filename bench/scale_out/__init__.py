"""Stela and the strategies that it was compared with: which operators get new machines."""
