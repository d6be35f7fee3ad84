"""Engines as processes, and the loads that run on them."""
