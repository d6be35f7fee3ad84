"""The engine ``simulated``, for load and fault tests. It generates random words at the speed of a modelled GPU."""
