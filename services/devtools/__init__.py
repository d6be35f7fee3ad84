"""Emulators of external services, for tests, demos and development. They are never part of a deployment."""
