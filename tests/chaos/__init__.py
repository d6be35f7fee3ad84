"""Tests that add, stop, pause and kill processes of services and brokers while answers are being generated.

They check only the events on the log, the archive, and what clients received.
"""
