"""The edge: people and apps ask over HTTP, SSE or websocket; the stream log answers."""
