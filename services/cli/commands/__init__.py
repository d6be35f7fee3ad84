"""Subcommands of ``railbus``, one module each. ``add_arguments`` declares the flags; ``run`` returns the exit code."""
