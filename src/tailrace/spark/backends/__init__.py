"""What runs a flow: micro-batches and real-time mode, and what they report."""
