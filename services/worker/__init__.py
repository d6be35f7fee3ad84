"""The part that all workers share: accept requests, run them on an engine, publish their events. A library."""
