"""Code of ``railbus demo``."""
