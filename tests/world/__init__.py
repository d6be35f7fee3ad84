"""A deterministic simulation of the whole tree: one process, one seed, virtual time."""
