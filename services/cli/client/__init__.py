"""Clients that send a request to an edge, or directly to Kafka, and receive the answer."""
