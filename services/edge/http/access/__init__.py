"""Access: API keys, TLS, the web origins that are allowed, and the proxies that are trusted."""
