"""Services and brokers that join, leave, pause and die while answers are under way; only the log is judged."""
