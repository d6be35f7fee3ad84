"""The embedded broker: a single process that serves a subset of Kafka's protocol for development, tests and demos.

It differs from Apache Kafka as follows:

* One node leads every partition. A replication factor other than 1 is rejected.
* Transactions are rejected. Idempotent producers are supported.
* There is no authentication and no TLS. The broker listens on loopback only.
* With a data directory, a batch is written to a file before it is acknowledged. Files are synced to the disk only at a
  clean stop.
* Without a data directory, records are in memory only. If all records together take more than `--memory-bytes`, the
  broker drops the oldest records of the largest partitions.
"""
