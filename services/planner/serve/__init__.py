"""``railbus plan serve``: the number of accelerators that serve a number of users within latency limits."""
