"""A library for all workers. It accepts requests, runs them on an engine, and publishes their events."""
