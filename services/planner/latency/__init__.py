"""``railbus plan latency``: latency budgets, computed from models of the hardware."""
