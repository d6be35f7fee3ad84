"""Clients that send a request, to an edge or directly to the log, and receive the answer as ops."""
