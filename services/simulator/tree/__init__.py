"""The simulated services. Each is built around its real core."""
