"""Check a simulation: the module ``oracle`` checks during the simulation, the module ``ending`` checks at its end."""
