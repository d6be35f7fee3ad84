"""The tracer, a service that reads the log and exports one OpenTelemetry trace for each closed request."""
