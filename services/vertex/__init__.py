"""Serves attempts in the cloud: the worker for Vertex AI, with Google's own client."""
