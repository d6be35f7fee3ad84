"""The subcommands, one file each. ``add_arguments`` declares the flags; ``run`` executes and returns the exit code."""
