"""Measurement of how well a policy detects attacks and personal data in public texts. ``__main__`` describes it."""
