"""The actions of ``railbus audit``."""
