"""The processes of ``railbus up``: configuration, start, restart, stop, and the state file."""
