"""Who may connect: API keys and TLS."""
