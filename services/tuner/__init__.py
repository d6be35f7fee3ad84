"""``railbus tune``: an engine's settings, one change at a time, measured against the best so far."""
