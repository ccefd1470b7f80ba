"""What a run leaves behind for the next one."""
