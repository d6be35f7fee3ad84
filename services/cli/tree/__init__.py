"""The processes that ``railbus up`` starts, together called a tree: configuration, start, restart, stop, state file."""
