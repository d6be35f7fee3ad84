"""Start, restart and stop the processes of ``railbus up``."""
