"""Plan latency, batch jobs and serving capacity, report on bench results, and calibrate the models to them."""
