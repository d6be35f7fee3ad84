"""Deliberate defects that the simulator (``services/simulator``) must find."""
