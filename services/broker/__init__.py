"""The embedded broker: enough of Kafka's protocol, in one process, for development, tests and demos.

With it the whole product runs from a plain `pip install`: the same client code talks to it and to Apache Kafka, and
one contract suite tests both for the same behaviour. It starts in a fraction of a second, answers waiting fetches as
soon as a record arrives, and listens on loopback only.

With a data directory a restart is as Kafka's: records, committed offsets, idempotent producers and stable consumer
groups are restored, and the members of such a group continue without a rebalance. Records are served from segment
files with sparse indexes; only the newest of each partition are in memory, at most 64 MiB in all. With
`message.timestamp.type=LogAppendTime` a partition's time never decreases, where Kafka's follows a clock that is set
back. A topic with `cleanup.policy=compact` keeps the newest record of each key: segments of 256 KiB are compacted when
they are closed, as soon as half of the closed ones is new.

It does **not** support, and reports when a client asks for it:

* replication: one node leads every partition; a replication factor other than 1 is rejected;
* transactions: a transactional id is rejected; idempotent producers are fully supported;
* authentication, authorisation and TLS;
* durability beyond the operating system: with a data directory every batch is written to the operating system before
  it is acknowledged, so a killed process loses nothing; files are synced to the disk only at a clean stop.

Without one, memory is bounded: each partition's records by its `retention.bytes` (256 MiB by default), those of all
partitions together by `--memory-bytes` (1 GiB); beyond that the oldest segments are dropped. With buffers and what the
allocator keeps, the process may take up to twice that. With one, only a topic's own retention drops records (1 GiB a
partition by default). Requests, connections, groups, members, producers and partitions are bounded too, each where it
is stored.

Hot paths (produce, fetch) use `struct` directly. Of aiokafka only the record codec (`aiokafka.record`) is used, for
the checksum and for compressed batches; only `services.bus` uses its clients.
"""
