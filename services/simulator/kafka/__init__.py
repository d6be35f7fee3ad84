"""The simulated broker, its groups, and processes with clocks of their own that talk to it."""
