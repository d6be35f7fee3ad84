"""Emulators of external services, for tests, demos and development. Never part of a deployment."""
