"""``railbus batch``: read inputs, submit and follow jobs, and write results."""
