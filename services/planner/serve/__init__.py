"""``railbus plan serve``: the number of accelerators that serve a number of people within latency limits."""
