"""What a change does to answers: identity, perplexity, and a small set of tasks."""
