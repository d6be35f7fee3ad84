"""``railbus plan serve``: how many accelerators serve so many people within their limits."""
