"""The command line program ``railbus``."""
