"""Report which settings of the host and its GPUs should be tuned. No setting is changed."""
