"""One file a subcommand: ``add`` says its flags, ``run`` does it and gives the exit code."""
