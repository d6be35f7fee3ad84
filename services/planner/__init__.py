"""The planner: ``railbus plan`` for latency, batch jobs and serving capacity, and the report of ``railbus bench``."""
