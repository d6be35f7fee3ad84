"""Performance formulas for the ledger, the planner and the simulated engine: standard library only, no I/O."""
