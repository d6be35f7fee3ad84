"""What of the host's and the GPU's tuning is not done; nothing is changed."""
