"""Tests of what Railbus needs from a Kafka broker. They run on Apache Kafka and on the embedded broker.

Apache Kafka is the reference: every test must pass on it first. If the embedded broker behaves differently, the
embedded broker is wrong.
"""
