"""Forecasts of the load, and alarms that follow from them."""
