"""The edge: the service that accepts requests over HTTP and websockets, and streams the answers to clients."""
