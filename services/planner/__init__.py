"""What a machine can do and what a plan costs: latency budgets, bench results read, models calibrated."""
