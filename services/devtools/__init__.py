"""Stand-ins for what is outside, for tests, demos and development. Never part of a deployment."""
