"""Who may connect and ask: API keys, TLS, whose pages, and which proxies are trusted."""
