"""Report settings of the host and its GPUs that should be tuned. Nothing is changed."""
