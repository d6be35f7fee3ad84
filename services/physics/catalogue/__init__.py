"""What can be planned with: accelerators, models and their published configs, precisions of weights."""
