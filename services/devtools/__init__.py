"""Emulators of external services for tests, demos and development."""
