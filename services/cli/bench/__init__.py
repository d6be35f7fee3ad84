"""Code of ``railbus bench engine``."""
