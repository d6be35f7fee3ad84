"""Benchmarks of a single engine, without Kafka."""
