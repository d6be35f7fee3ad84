"""The engine ``simulated``: random words at the pace of a modelled accelerator, with scripted faults."""
