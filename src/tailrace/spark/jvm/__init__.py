"""Java: found, started, and quiet when it ends."""
