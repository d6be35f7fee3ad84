"""Measure one engine without Kafka and without other services. Each run starts an engine and runs one workload."""
