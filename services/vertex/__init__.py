"""The worker that runs fallback attempts on Vertex AI, with Google's own client."""
