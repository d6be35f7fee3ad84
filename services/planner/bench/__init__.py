"""Reports on the results of ``railbus bench engine``."""
