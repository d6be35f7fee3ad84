"""Subcommands about Kafka: events, topics, access rights, and dead letters."""
