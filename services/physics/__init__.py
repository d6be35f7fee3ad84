"""Performance formulas for the planner and the simulated engine. They use the standard library only, without I/O."""
