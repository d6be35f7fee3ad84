"""Performance formulas for the planner and the simulated engine."""
