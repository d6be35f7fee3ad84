"""Formats answers, events, dead letters and reports for people."""
