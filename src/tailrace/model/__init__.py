"""What would happen: models of batches and queues. Pure."""
