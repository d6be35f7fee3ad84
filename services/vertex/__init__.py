"""The worker that answers requests with a model on Vertex AI."""
