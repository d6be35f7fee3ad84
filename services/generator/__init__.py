"""The generator: the worker that runs requests on a self-hosted engine, and all self-hosted engines."""
