"""What to do: functions from an observation to a decision. Pure."""
