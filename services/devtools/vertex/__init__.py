"""A local server that speaks Vertex AI's ``streamGenerateContent`` over HTTP, with scripted latency and faults."""
