"""``railbus tune``: search for better settings of an engine, one measured change at a time."""
