"""Subcommands about what is on Kafka: events, topics, rights, records that could not be read."""
