"""The edge: accepts requests over HTTP and websockets, and delivers answers from the stream log."""
