"""Performance formulas for the planner and the simulated engine: standard library only, no I/O."""
