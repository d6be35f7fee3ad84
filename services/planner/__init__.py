"""Plan latency, batch jobs and serving capacity, report on bench results, and calibrate performance models to them."""
