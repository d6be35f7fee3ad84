"""Latency budgets, computed from models of the hardware: ``railbus plan``."""
