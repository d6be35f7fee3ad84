"""A library for workers: services that read requests, run them on an engine, and publish the answers as events."""
