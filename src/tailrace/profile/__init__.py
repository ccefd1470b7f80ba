"""What was measured: moments, histograms, batches and intervals. Pure."""
