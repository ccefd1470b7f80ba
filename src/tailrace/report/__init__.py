"""What happened, as data, as a terminal view and as a picture."""
