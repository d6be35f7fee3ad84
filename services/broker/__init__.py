"""The embedded broker: enough of Kafka's protocol, in one process, for development, tests and demos.

With the embedded broker, the whole product runs from a plain `pip install`. The same client code talks to this broker
and to Apache Kafka, and one contract suite checks that both behave the same. The broker starts in a fraction of a
second, answers waiting fetches as soon as a record arrives, and listens on loopback only.

With a data directory, the broker restarts as Kafka does: records, committed offsets, idempotent producers and stable
consumer groups are restored, and the members of a stable group continue without a rebalance. Records are served from
segment files with sparse indexes. Only the newest records of each partition are in memory, at most 64 MiB for all
partitions together. With `message.timestamp.type=LogAppendTime`, the timestamps in a partition never decrease. Kafka's
timestamps decrease when the clock is set back. A topic with `cleanup.policy=compact` keeps the newest record of each
key. Its segments are closed at 256 KiB. Its closed segments are compacted as soon as at least half of their bytes have
not been compacted yet.

The broker does **not** support the following. If a client requests one of these features, the broker reports that the
feature is not supported:

* replication: one node leads every partition; a replication factor other than 1 is rejected;
* transactions: a transactional id is rejected; idempotent producers are fully supported;
* authentication, authorisation and TLS;
* durability beyond the operating system: with a data directory, every batch is written to the operating system before
  it is acknowledged, so a killed process loses nothing. Files are synced to the disk only at a clean stop.

Without a data directory, all records are in memory. `retention.bytes` limits the records of each partition (256 MiB by
default), and `--memory-bytes` limits the records of all partitions together (1 GiB by default). Beyond these limits,
the oldest segments are dropped. The process may take up to twice the memory of its records, because of buffers and of
memory that the allocator retains. With a data directory, records are dropped only by the retention of their topic
(1 GiB per partition by default). The numbers of connections, groups, members, producers and partitions, and the size of
requests, are always limited. Each limit is defined in the module that enforces it.

The hot paths, produce and fetch, use `struct` directly. The only part of aiokafka that this package uses is the record
codec (`aiokafka.record`): it computes checksums, and decodes and rebuilds batches. Only `services.bus` uses aiokafka's
clients.
"""
