"""Simulate all services in one process, in virtual time and with injected faults.

A seed determines each run. The simulation checks properties that must hold in every run, for example that each request
is closed.
"""
