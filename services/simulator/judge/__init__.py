"""Checks of a simulated run: ``oracle`` during the run, ``ending`` at its end."""
