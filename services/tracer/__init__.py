"""Service that reads the log and exports one OpenTelemetry trace for each closed request."""
