"""``railbus plan batch``: every way to answer many prompts, with hours, money and quality."""
