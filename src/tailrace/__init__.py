"""Latency guarantees for Spark Structured Streaming pipelines."""
