"""Every metric of the product, named once. Times are milliseconds; labels have few values by construction."""

from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, Counter, Gauge, Histogram, generate_latest

_MS_BUCKETS: Final = (1, 2, 5, 10, 20, 35, 50, 75, 100, 150, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)

# Bus: records written. ``topic`` is one of schemas.topics.
PRODUCED: Final = Counter("railbus_bus_produced", "Events acknowledged by the broker", ["topic"])
# Events handed to the producer and not acknowledged yet.
UNACKED: Final = Gauge("railbus_bus_unacked", "Events accepted by the producer and not yet acknowledged")
# Events the broker refused for good (too large, not authorised); each is logged.
REFUSED: Final = Counter("railbus_bus_refused", "Events the broker refused for good", ["topic"])
# Times the producer began a new session and sent what was unacknowledged again, in order.
RESENT: Final = Counter("railbus_bus_resent", "Events sent again in a new producer session")
# Events still unacknowledged when the process had to end; each topic is logged.
UNSENT: Final = Counter("railbus_bus_unsent", "Events not acknowledged when the producer stopped", ["topic"])

# Bus: records read. A record is counted in exactly one of consumed, unwanted, skipped, malformed.
CONSUMED: Final = Counter("railbus_bus_consumed", "Events delivered to a handler", ["topic"])
# Not decoded because the handler does not want the kind or key.
UNWANTED: Final = Counter("railbus_bus_unwanted", "Records passed over by kind or key", ["topic"])
# Written for a newer reader; ``reason`` is UnknownKind or NewerVersion.
SKIPPED: Final = Counter("railbus_bus_skipped", "Records written for a newer reader", ["topic", "reason"])
# The writer is at fault; each goes to the handler as Unread.
MALFORMED: Final = Counter("railbus_bus_malformed", "Records that claim to be events and are not", ["topic"])
# Offsets committed, by group.
COMMITS: Final = Counter("railbus_bus_commits", "Offset commits", ["group"])
# Assignments taken over, by group: one at the start, one more whenever members come or go.
REBALANCES: Final = Counter("railbus_bus_rebalances", "Assignments of partitions taken over", ["group"])
# Processors, by group: records between the position and the end of the log, and how long ago the end was last reached.
LAG_RECORDS: Final = Gauge("railbus_processor_lag_records", "Records not read yet", ["group"])
LAG_SECONDS: Final = Gauge("railbus_processor_lag_seconds", "Since everything on the log had been read", ["group"])
# Records read again because their partition was gained.
REPLAYED: Final = Counter("railbus_processor_replayed", "Records read before a partition was decided about", ["group"])
# From a record's append to its reading; the newest record of each batch.
EVENT_AGE: Final = Histogram("railbus_processor_event_age_ms", "Append to read, ms", ["group"], buckets=_MS_BUCKETS)
# Times a reader had to wait because its handler had no room.
FULL: Final = Counter("railbus_bus_room_full", "Times reading stopped because the handler had no room")
# Brokers that cannot be reached now.
BROKER_AWAY: Final = Gauge("railbus_bus_brokers_away", "Brokers that cannot be reached")

# Generator: executions running now.
GENERATING: Final = Gauge("railbus_generator_running", "Executions running now")
# Requests accepted that wait for a slot of the engine.
GENERATOR_WAITING: Final = Gauge("railbus_generator_waiting", "Accepted requests that wait for the engine")
# Executions ended; ``outcome`` is finished, failed or cancelled.
EXECUTIONS: Final = Counter("railbus_generator_executions", "Executions ended", ["outcome"])
# Failures by error class (schemas.stream.ErrorClass).
GENERATOR_FAILURES: Final = Counter("railbus_generator_failures", "Failed executions", ["error_class"])
# Chunks and tokens published.
CHUNKS: Final = Counter("railbus_generator_chunks", "Chunks published")
TOKENS: Final = Counter("railbus_generator_tokens", "Tokens published")
# Drafted and accepted tokens; their quotient is the acceptance rate.
DRAFTED: Final = Counter("railbus_generator_drafted_tokens", "Tokens proposed by the draft")
ACCEPTED: Final = Counter("railbus_generator_accepted_tokens", "Drafted tokens accepted by the target")
# The same as an external vLLM server tells it, of all its answers since it started.
UPSTREAM_DRAFTED: Final = Gauge("railbus_generator_upstream_drafted_tokens", "Tokens the upstream's draft proposed")
UPSTREAM_ACCEPTED: Final = Gauge("railbus_generator_upstream_accepted_tokens", "Of those, accepted by its target")
# Request accepted to first chunk published.
GENERATOR_TTFT: Final = Histogram("railbus_generator_ttft_ms", "Accepted to first chunk, ms", buckets=_MS_BUCKETS)
# Cancels that ended a running execution.
ABORTED: Final = Counter("railbus_generator_aborted", "Executions aborted by a Cancel")

# Edge: client streams open now; ``transport`` is websocket, sse or http.
STREAMS_ACTIVE: Final = Gauge("railbus_edge_streams", "Client streams open now", ["transport"])
# Connections ended, by schemas.books.DetachReason.
DETACHED: Final = Counter("railbus_edge_detached", "Client connections ended", ["reason"])
# Requests taken, and those refused with a 4xx; ``status`` is the HTTP code.
EDGE_REQUESTS: Final = Counter("railbus_edge_requests", "Requests accepted and put on the log")
EDGE_REFUSED: Final = Counter("railbus_edge_refused", "Requests refused", ["status"])
# Receipt to first text sent, by the user's clock.
EDGE_TTFT: Final = Histogram("railbus_edge_ttft_ms", "Receipt to first text sent, ms", buckets=_MS_BUCKETS)
# Ops written to clients.
OPS_SENT: Final = Counter("railbus_edge_ops", "Ops sent to clients")
# Slow clients: their connection was dropped because its send queue was full.
SENDS_DROPPED: Final = Counter("railbus_edge_dropped", "Connections dropped because the client was too slow")
# Streams taken up again at an offset.
RESUMES: Final = Counter("railbus_edge_resumes", "Streams resumed")

# Router: requests it is deciding about now.
ROUTER_OPEN: Final = Gauge("railbus_router_open", "Requests not closed yet")
# Closed requests, by schemas.stream.Outcome.
CLOSED: Final = Counter("railbus_router_closed", "Requests closed", ["outcome"])
# Cutovers written, by trigger.
CUTOVERS: Final = Counter("railbus_router_cutovers", "Cutovers written", ["trigger"])
# Cancels written, by schemas.books.CancelReason.
CANCELS: Final = Counter("railbus_router_cancels", "Cancels written", ["reason"])
# Dead letters written.
DEAD_LETTERS: Final = Counter("railbus_router_dead_letters", "Dead letters written")

# Rails: requests judged now.
JUDGING: Final = Gauge("railbus_rails_judging", "Requests whose prompts are being judged")
# Verdicts written, by schemas.stream.Decision.
VERDICTS: Final = Counter("railbus_rails_verdicts", "Verdicts written", ["decision"])
# From taking up a request to its verdict.
VERDICT_MS: Final = Histogram("railbus_rails_verdict_ms", "Taken up to verdict, ms", buckets=_MS_BUCKETS)
# How each rail ended (schemas.stream.RailResult); ``rail`` is one of the policy's.
RAILS: Final = Counter("railbus_rails_outcomes", "Rails run", ["rail", "result"])
# How long each rail took that was not cancelled.
RAIL_MS: Final = Histogram("railbus_rails_rail_ms", "Time of one rail, ms", ["rail"], buckets=_MS_BUCKETS)
# Answers looked up, near and in Redis; ``outcome`` is hit or miss.
VERDICT_CACHE: Final = Counter("railbus_rails_cache", "Answers looked up, near and in Redis", ["outcome"])

# Safety: requests whose answers are being checked now.
SAFETY_OPEN: Final = Gauge("railbus_safety_open", "Requests whose answers are being checked")
# Recalls and clearances written; ``action`` is stop or redact.
RECALLS: Final = Counter("railbus_safety_recalls", "Recalls written", ["action", "category"])
CLEARED: Final = Counter("railbus_safety_cleared", "Clearances written")
# Windows looked at by tier 1 and 2; ``outcome`` is seen or unchecked.
LOOKS: Final = Counter("railbus_safety_looks", "Windows given to a check", ["tier", "outcome"])
# Windows that wait for their check now.
LOOKS_OPEN: Final = Gauge("railbus_safety_looks_open", "Windows that wait for their check")
# Requests forgotten because they were never closed.
SAFETY_EXPIRED: Final = Counter("railbus_safety_expired", "Requests forgotten without a Closed")
# Policy versions refused while running, by the service that refused.
POLICY_REFUSED: Final = Counter("railbus_policy_refused", "Policy versions refused; the old one stayed")


def exposition() -> tuple[bytes, str]:
    """All metrics in Prometheus' text format, and its content type."""
    return generate_latest(REGISTRY), CONTENT_TYPE_LATEST
