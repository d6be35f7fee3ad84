"""The report of an experiment: as data, as Markdown, as a page and as an environment file."""
