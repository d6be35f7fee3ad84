"""Simulate all services in one process, in virtual time and with injected faults.

A seed determines everything that happens in a simulation. Checks during the simulation and at its end find errors, for
example a request that is never closed.
"""
