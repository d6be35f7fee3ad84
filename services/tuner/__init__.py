"""``railbus tune``: improve an engine's settings. Measure one change at a time against the best settings so far."""
