"""The command line ``railbus``: starts the tree, asks it, watches it."""
