"""The tracer, a service that exports one OpenTelemetry trace of each closed request.

It derives the trace from the log, and writes nothing to the log.
"""
