"""Measure the effect of a change on answers: equal texts, perplexity, and a small set of tasks."""
