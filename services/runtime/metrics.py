"""All Prometheus metrics of Railbus. Times are in milliseconds unless the name has another unit."""

from functools import lru_cache
from typing import Any, Final, get_args

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, Counter, Gauge, Histogram, generate_latest

from schemas.requests import Lane
from schemas.side_events import CancelReason
from schemas.stream import Cause, Outcome, Trigger, VerdictDecision
from schemas.topics import TOPICS

READY: Final = Gauge("railbus_runtime_ready", "1 while the process answers /readyz with 200, otherwise 0.")

_MS_BUCKETS: Final = (1, 2, 5, 10, 20, 35, 50, 75, 100, 150, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000)

# Bus: records written.
PRODUCED: Final = Counter("railbus_bus_produced", "Events that the broker acknowledged, by topic.", ["topic"])
UNACKED: Final = Gauge("railbus_bus_unacked", "Events handed to the producer and not acknowledged yet.")
RECORDS_REFUSED: Final = Counter(
    "railbus_bus_refused",
    "Events that the broker refused for good, by topic: too large, or not authorised. Each is logged.",
    ["topic"],
)
RESENT: Final = Counter(
    "railbus_bus_resent", "Events sent again because the producer had to begin a new session. Their order is kept."
)
UNSENT: Final = Counter(
    "railbus_bus_unsent",
    "Events that were still not acknowledged when the process ended, by topic. Each topic is logged.",
    ["topic"],
)

# Bus: records read.
CONSUMED: Final = Counter(
    "railbus_bus_consumed",
    "Records handed to their reader, by topic. Every record counts as consumed, unwanted, skipped or malformed.",
    ["topic"],
)
UNWANTED: Final = Counter(
    "railbus_bus_unwanted",
    "Records not decoded because their reader does not want their kind or key, by topic.",
    ["topic"],
)
SKIPPED: Final = Counter(
    "railbus_bus_skipped",
    "Records written for a newer reader, by topic; reason is UnknownKind or NewerVersion.",
    ["topic", "reason"],
)
MALFORMED: Final = Counter(
    "railbus_bus_malformed",
    "Records that are not valid events, by topic. Their writer is at fault; the router makes dead letters of them.",
    ["topic"],
)
COMMITS: Final = Counter("railbus_bus_commits", "Offset commits, by consumer group.", ["group"])
REBALANCES: Final = Counter(
    "railbus_bus_rebalances",
    "Partition assignments, by consumer group: one at the start, one more whenever members come or go.",
    ["group"],
)
LAG_RECORDS: Final = Gauge(
    "railbus_processor_lag_records",
    "Records between the reading position and the end of the log, by consumer group.",
    ["group"],
)
LAG_SECONDS: Final = Gauge(
    "railbus_processor_lag_seconds", "Seconds since the end of the log was last reached, by consumer group.", ["group"]
)
REPLAYED: Final = Counter(
    "railbus_processor_replayed",
    "Records read again because their partition was taken over, by consumer group.",
    ["group"],
)
EVENT_AGE: Final = Histogram(
    "railbus_processor_event_age_ms",
    "From a record's append to its reading, in milliseconds, by consumer group; the newest record of each batch.",
    ["group"],
    buckets=_MS_BUCKETS,
)
CLOCK_SKEW: Final = Gauge(
    "railbus_processor_clock_skew_ms",
    "How far writers' clocks are ahead of the broker's, in milliseconds, by the writer's service (other: none of ours);"
    " of each the one that is farthest off. Deadlines do not depend on it.",
    ["writer"],  # not "service": Prometheus gives each series the label "service" of the process that reports it
)
READS_PAUSED: Final = Counter(
    "railbus_bus_room_full", "Times that reading paused because the service had as much work as it may hold."
)
BROKER_AWAY: Final = Gauge("railbus_bus_brokers_away", "Brokers that cannot be reached now.")

# Generator.
GENERATING: Final = Gauge("railbus_generator_running", "Executions that are running now.")
GENERATOR_WAITING: Final = Gauge("railbus_generator_waiting", "Accepted requests that wait for the engine.")
EXECUTIONS: Final = Counter(
    "railbus_generator_executions", "Executions that have ended; outcome is finished, failed or cancelled.", ["outcome"]
)
GENERATOR_FAILURES: Final = Counter(
    "railbus_generator_failures", "Executions that failed, by the error class of their Failed event.", ["error_class"]
)
CHUNKS: Final = Counter("railbus_generator_chunks", "Chunks published.")
TOKENS: Final = Counter("railbus_generator_tokens", "Tokens published.")
DRAFTED: Final = Counter("railbus_generator_drafted_tokens", "Tokens that the draft model proposed.")
ACCEPTED: Final = Counter(
    "railbus_generator_accepted_tokens",
    "Drafted tokens that the target model accepted; divided by the drafted ones, the acceptance rate.",
)
UPSTREAM_DRAFTED: Final = Gauge(
    "railbus_generator_upstream_drafted_tokens",
    "Tokens drafted by an upstream vLLM server since it started, as the server reports them.",
)
UPSTREAM_ACCEPTED: Final = Gauge(
    "railbus_generator_upstream_accepted_tokens", "Drafted tokens accepted by an upstream vLLM server since it started."
)
GENERATOR_TTFT: Final = Histogram(
    "railbus_generator_ttft_ms",
    "From accepting a request to publishing its first chunk, in milliseconds.",
    buckets=_MS_BUCKETS,
)
ABORTED: Final = Counter("railbus_generator_aborted", "Running executions that a Cancel event ended.")

# Edge.
STREAMS_ACTIVE: Final = Gauge(
    "railbus_edge_streams", "Client streams that are open now; transport is websocket, sse or http.", ["transport"]
)
TENANTS_ACTIVE: Final = Gauge("railbus_edge_tenants", "Tenants that have a stream open now.")
TENANT_STREAMS_MOST: Final = Gauge(
    "railbus_edge_tenant_streams_most", "Open streams of the tenant that has most of them now."
)
EDGE_CONNECTIONS: Final = Gauge(
    "railbus_edge_connections",
    "Open connections; kind is idle (no request), http, websocket, or refused (over a limit, health checks only).",
    ["kind"],
)
DETACHED: Final = Counter(
    "railbus_edge_detached", "Client connections that have ended, by the reason in their Detached event.", ["reason"]
)
EDGE_REQUESTS: Final = Counter("railbus_edge_requests", "Requests accepted and written to the log.")
EDGE_REFUSED: Final = Counter("railbus_edge_refused", "Requests answered with an error, by HTTP status.", ["status"])
EDGE_BODY_BYTES: Final = Gauge(
    "railbus_edge_body_bytes", "Bytes of bodies and messages that clients have sent and that are not on the log yet."
)
EDGE_BATCH_WAITING: Final = Gauge(
    "railbus_edge_batch_waiting", "Batch requests over HTTP that wait at the edge for a free stream."
)
QUOTA_REFUSED: Final = Counter(
    "railbus_edge_quota_refused",
    "Requests refused with 429 because of a tenant's limit; quota is requests, tokens, resumes or streams.",
    ["quota"],
)
EDGE_TTFT: Final = Histogram(
    "railbus_edge_ttft_ms",
    "From the receipt of an interactive request to sending its first text, in milliseconds: what a person waits.",
    buckets=_MS_BUCKETS,
)
EXPOSED_TOKENS: Final = Histogram(
    "railbus_edge_exposed_tokens",
    "Most tokens that a connection was shown beyond what was cleared, one observation for each connection.",
    buckets=(0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 1_024),
)
EXPOSURE_MS: Final = Histogram(
    "railbus_edge_exposure_ms",
    "How long text that was recalled later had been shown, in milliseconds: one observation for each connection that"
    " was shown such text.",
    buckets=_MS_BUCKETS,
)
OPS_SENT: Final = Counter("railbus_edge_ops", "Ops sent to clients.")
SENDS_DROPPED: Final = Counter("railbus_edge_dropped", "Connections dropped because their client read too slowly.")
RESUMES: Final = Counter("railbus_edge_resumes", "Streams resumed at a position.")

# Router.
ROUTER_OPEN: Final = Gauge("railbus_router_open", "Requests that are not closed yet.")
REQUESTS_CLOSED: Final = Counter("railbus_router_closed", "Requests closed, by lane and outcome.", ["lane", "outcome"])
CLOSED_CAUSES: Final = Counter(
    "railbus_router_closed_causes",
    "Closed events written, by cause. One that has no effect, because another came first, counts too.",
    ["cause"],
)
BREAKER_OPEN: Final = Gauge(
    "railbus_router_breaker_open",
    "1 while the circuit breaker sends new requests straight to the cloud or probes the self-hosted path, otherwise 0.",
)
FALLBACK_USED: Final = Gauge(
    "railbus_router_fallback_used",
    "Share of the last minute's fallback budget that is spent, in requests or in money, whichever is more. "
    "1 also for a minute after the budget has refused an attempt.",
)
CUTOVERS: Final = Counter("railbus_router_cutovers", "Cutovers written, by trigger.", ["trigger"])
CANCELS: Final = Counter("railbus_router_cancels", "Cancels written, by reason.", ["reason"])
DEAD_LETTERS: Final = Counter("railbus_router_dead_letters", "Dead letters written.")

# Rails.
JUDGING: Final = Gauge("railbus_rails_judging", "Requests whose prompts are being judged now.")
VERDICTS: Final = Counter("railbus_rails_verdicts", "Verdicts written; decision is allow, deny or mask.", ["decision"])
VERDICT_MS: Final = Histogram(
    "railbus_rails_verdict_ms", "From taking up a request to its verdict, in milliseconds.", buckets=_MS_BUCKETS
)
RAIL_OUTCOMES: Final = Counter(
    "railbus_rails_outcomes", "Rails run, by the policy's name of the rail and its result.", ["rail", "result"]
)
RAIL_MS: Final = Histogram(
    "railbus_rails_rail_ms", "Time of one rail that was not cancelled, in milliseconds.", ["rail"], buckets=_MS_BUCKETS
)
VERDICT_CACHE: Final = Counter(
    "railbus_rails_cache",
    "Look-ups of an earlier result, in the process and in Redis; outcome is hit or miss.",
    ["outcome"],
)

# Safety.
SAFETY_OPEN: Final = Gauge("railbus_safety_open", "Requests whose answers are being checked now.")
RECALLS: Final = Counter(
    "railbus_safety_recalls", "Recalls written, by action (stop or redact) and category.", ["action", "category"]
)
CLEARED: Final = Counter("railbus_safety_cleared", "Clearances written.")
LOOKS: Final = Counter(
    "railbus_safety_looks",
    "Windows of text given to a check, by tier; outcome is seen, or unchecked when the check failed.",
    ["tier", "outcome"],
)
LOOKS_OPEN: Final = Gauge("railbus_safety_looks_open", "Windows of text that wait for their check.")
SAFETY_EXPIRED: Final = Counter(
    "railbus_safety_expired",
    "Requests forgotten because no Closed event came for them, or because too many were open in their partition.",
)

# Tracer.
TRACER_OPEN: Final = Gauge("railbus_tracer_open", "Requests that have no trace yet.")
TRACER_WAITING: Final = Gauge("railbus_tracer_waiting_spans", "Spans that wait for the collector.")
TRACER_SPANS: Final = Counter(
    "railbus_tracer_spans",
    "Spans of closed requests; outcome is exported, dropped (too many waited) or failed (the collector did not take"
    " them).",
    ["outcome"],
)
TRACER_UNTRACED: Final = Counter(
    "railbus_tracer_untraced",
    "Requests without a trace; reason is unsampled (their client wants none), unclosed (a receipt whose account did not"
    " come), crowded (too many requests were remembered) or incomplete (the account is an older router's, or its"
    " Request was not read).",
    ["reason"],
)

# Policy. Rails and safety load the whole policy, edge and router only its classes.
POLICY_REFUSED: Final = Counter(
    "railbus_policy_refused",
    "Edits of the policy that were refused while the service was running; the version before stays.",
)

# Batch jobs. Every batch service knows all jobs from the log, but only one batch service runs them.
BATCH_JOBS: Final = Gauge(
    "railbus_batch_jobs",
    "Jobs that have not ended, by status (validating, in_progress, paused, finalizing, cancelling). Every batch service"
    " reports all of them.",
    ["status"],
)
BATCH_LINES_LEFT: Final = Gauge(
    "railbus_batch_lines_left",
    "Lines of unfinished jobs that have no result yet, in every batch service; a job counts once its input was read.",
)
BATCH_OLDEST_SECONDS: Final = Gauge(
    "railbus_batch_oldest_job_seconds", "Age of the oldest unfinished job, in every batch service; 0 without one."
)
BATCH_TIME_USED: Final = Gauge(
    "railbus_batch_time_used",
    "Share of the time from submission to expiry that has passed, of the unfinished job where it is largest, in every"
    " batch service; at 1 the job expires.",
)
BATCH_LINES_OPEN: Final = Gauge(
    "railbus_batch_lines_open",
    "Lines that were submitted, or wait to be tried again, and have no result yet; in the batch service that runs the"
    " jobs.",
)
BATCH_WINDOW: Final = Gauge(
    "railbus_batch_window",
    "Requests that the running jobs may have open now; it shrinks when requests expire in a queue.",
)
BATCH_LINES: Final = Counter(
    "railbus_batch_lines",
    "Lines that got their result; outcome is completed or failed. After a crash, the last second's may count again.",
    ["outcome"],
)
BATCH_RETRIES: Final = Counter("railbus_batch_retries", "Requests beyond the first one of a line.")

# Ledger.
LEDGER_READ: Final = Counter("railbus_ledger_read", "Records of accounts and receipts that the ledger has taken.")
LEDGER_LATE: Final = Counter(
    "railbus_ledger_late", "Accounts and receipts left out because they came after their window was sealed."
)
LEDGER_OPEN: Final = Gauge("railbus_ledger_open", "Requests that the ledger remembers: their windows may still change.")
LEDGER_WINDOWS: Final = Counter("railbus_ledger_windows", "Windows published, each time that they had changed.")

# Archiver.
ARCHIVED: Final = Counter("railbus_audit_archived", "Records written to the archive, by topic.", ["topic"])
ARCHIVE_FILES: Final = Counter("railbus_audit_files", "Files written to the archive, by topic.", ["topic"])
ARCHIVE_BUFFERED: Final = Gauge("railbus_audit_buffered_bytes", "Memory of records that wait for their file.")
ARCHIVE_CONFLICTS: Final = Counter(
    "railbus_audit_conflicts", "Files that another archiver had written first; nothing is archived twice."
)

# Create these counters now. A counter that appears only at its first event shows no increase for it, so no alert fires.
for _topic in TOPICS:
    RECORDS_REFUSED.labels(_topic.name)
    UNSENT.labels(_topic.name)
for _counter, _values in (
    (CLOSED_CAUSES, Cause), (CUTOVERS, Trigger), (CANCELS, CancelReason), (VERDICTS, VerdictDecision),
):  # fmt: skip
    for _value in get_args(_values):
        _counter.labels(_value)
for _lane in get_args(Lane):
    for _value in get_args(Outcome):
        REQUESTS_CLOSED.labels(_lane, _value)
for _outcome in ("completed", "failed"):
    BATCH_LINES.labels(_outcome)
for _outcome in ("exported", "dropped", "failed"):
    TRACER_SPANS.labels(_outcome)


@lru_cache(maxsize=4_096)
def labelled(metric: Any, *labels: str) -> Any:
    """Return the child of a metric for these labels. Children are cached."""
    # ``labels`` takes a lock, and takes as long as decoding a record.
    return metric.labels(*labels)


def render_metrics() -> tuple[bytes, str]:
    return generate_latest(REGISTRY), CONTENT_TYPE_LATEST
