"""Check a simulation. The module ``oracle`` checks during the simulation, and the module ``ending`` at its end."""
