"""Access to the edge: API keys, TLS, allowed web origins and trusted proxies."""
