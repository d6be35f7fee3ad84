"""An emulator of Vertex AI's ``streamGenerateContent`` over HTTP, with scripted latency and faults."""
