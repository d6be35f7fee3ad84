"""Exports one OpenTelemetry trace of each closed request, derived from the log. It writes nothing to the log."""
