"""``railbus demo``: scenes from a tree of its own, each an answer beside its log."""
