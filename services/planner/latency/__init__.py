"""``railbus plan latency``: latency budgets, computed from a performance model of the hardware."""
