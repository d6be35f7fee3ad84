"""``railbus demo``: what the log does to an answer, scene by scene, from real events of a tree of its own."""
