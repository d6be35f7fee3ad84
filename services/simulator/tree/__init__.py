"""Simulated services, each with its real decision logic (``Core``)."""
