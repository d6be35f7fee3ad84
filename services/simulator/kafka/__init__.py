"""Simulated Kafka broker and consumer groups, and the hosts and processes that use them."""
