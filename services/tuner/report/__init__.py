"""The report of an experiment, as data, Markdown, an HTML page and an environment file."""
