"""HTTP emulator of Vertex AI's ``streamGenerateContent``, with scripted latency and faults."""
