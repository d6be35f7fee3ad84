"""The subcommands of ``python -m services.planner``, one module each."""
