"""How each service of the simulated tree is built around its real core."""
