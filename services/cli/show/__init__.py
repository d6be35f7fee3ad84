"""Formatting of answers, events, dead letters and reports."""
