"""Measure the effect of a change on the quality of answers."""
