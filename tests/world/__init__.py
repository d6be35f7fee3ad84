"""Defects that the simulation (``services/simulator``) must find."""
