"""The engine ``simulated``. It generates random words at the pace of a modelled accelerator, with scripted faults."""
