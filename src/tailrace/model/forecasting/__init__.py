"""Forecasts of the load, and alarms based on them."""
