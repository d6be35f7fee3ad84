"""The embedded broker: enough of Kafka's protocol, in one process, for development, tests and demos.

It exists so that the whole product runs from a plain `pip install`: the same client code talks to it and to Apache
Kafka, and one contract suite holds both to the same behaviour. It starts in a fraction of a second and wakes waiting
fetches the moment a record arrives. It listens on loopback only.

With a data directory a restart is as Kafka's: records, committed offsets, idempotent producers and stable consumer
groups are there, and the members of such a group go on without a rebalance. With `message.timestamp.type=LogAppendTime`
a partition's time never goes back, where Kafka's follows a clock that is set back.

What it does **not** do, and says so when a client asks:

* replication: one node leads every partition; a replication factor other than 1 is refused;
* compaction: `cleanup.policy=compact` is accepted (Faust's changelogs need it), but every record is kept;
* transactions: a transactional id is refused; idempotent producers are served in full;
* authentication, authorisation and TLS;
* durability beyond the operating system: with a data directory every batch is handed to the operating system before
  it is acknowledged, so a killed process loses nothing; files are synced to the disk only at a clean stop.

Memory is bounded: each partition's records by its `retention.bytes` (256 MiB unless configured), those of all
partitions together by `--memory-bytes` (1 GiB); past that the oldest go first, a segment at a time. With buffers and
what the allocator holds back the process may take up to twice that. Requests, connections, groups, members, producers
and partitions are bounded too, each where it is kept.

Hot paths (produce, fetch) are coded by hand over `struct`. Of aiokafka only the record codec (`aiokafka.record`) is
used, for the checksum and for compressed batches; the client itself belongs to `services.bus` alone.
"""
