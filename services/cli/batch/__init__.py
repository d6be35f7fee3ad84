"""``railbus batch``: reading inputs, following jobs, writing results."""
