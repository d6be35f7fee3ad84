"""What Railbus asks of a Kafka broker, run against Apache Kafka and against the embedded broker.

Apache Kafka is the reference: a test is written to pass there first. Where the embedded broker differs, it is wrong.
"""
