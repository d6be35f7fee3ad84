"""``railbus plan batch``: compare the ways to answer many prompts by hours, money and quality."""
