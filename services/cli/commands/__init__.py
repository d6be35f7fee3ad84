"""One file a subcommand: ``add_arguments`` declares its flags, ``run`` runs it and returns the exit code."""
