"""Asks the edge or the log, and receives an answer as ops."""
