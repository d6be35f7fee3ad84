"""The report of an experiment as JSON, Markdown, HTML and environment file."""
