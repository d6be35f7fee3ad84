"""The catalogue of the planner: accelerators, models and their published configurations, precisions of weights."""
