"""Reports on bench results: ``railbus bench``."""
