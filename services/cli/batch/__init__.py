"""Code of ``railbus batch``."""
