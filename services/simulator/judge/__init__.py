"""Check a simulation. The module ``oracle`` checks it while it runs, and the module ``ending`` when it is over."""
