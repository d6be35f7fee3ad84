"""``railbus demo``: start its own services, and play scenes that show an answer beside the events on its log."""
