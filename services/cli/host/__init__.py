"""Report which settings of the host and its GPUs should be tuned. Nothing is changed."""
