"""``railbus plan batch``: compare the ways to answer many prompts by time, cost and quality."""
