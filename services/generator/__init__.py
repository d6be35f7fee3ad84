"""The generator, which is the worker for self-hosted engines, and the engines themselves."""
