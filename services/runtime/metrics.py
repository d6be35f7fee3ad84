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
    "Events that the broker refused permanently, by topic, for example because they are too large or not authorised. "
    "Every refusal is logged.",
    ["topic"],
)
RESENT: Final = Counter(
    "railbus_bus_resent", "Events sent again because the producer had to begin a new session. Their order is kept."
)
UNSENT: Final = Counter(
    "railbus_bus_unsent",
    "Events that were still not acknowledged when the process ended, by topic. The process logs their partitions.",
    ["topic"],
)

# Bus: records read.
CONSUMED: Final = Counter(
    "railbus_bus_consumed",
    "Records handed to their reader, by topic. Each record that was read counts in one of four metrics: consumed, "
    "unwanted, skipped or malformed.",
    ["topic"],
)
UNWANTED: Final = Counter(
    "railbus_bus_unwanted",
    "Records not decoded because their reader does not want their kind or key, by topic.",
    ["topic"],
)
SKIPPED: Final = Counter(
    "railbus_bus_skipped",
    "Records that only a newer version of the reader can decode, by topic; reason is UnknownKind or NewerVersion.",
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
    "Time from a record's append to its reading, in milliseconds, by consumer group. Only the last record of each "
    "batch is observed.",
    ["group"],
    buckets=_MS_BUCKETS,
)
CLOCK_SKEW: Final = Gauge(
    "railbus_processor_clock_skew_ms",
    "How far writers' clocks are ahead of the broker's, in milliseconds, by the writer's service (other: not a service "
    "of Railbus). For each service, the process whose clock is farthest off counts. Deadlines do not depend on these "
    "clocks.",
    ["writer"],  # not "service": Prometheus gives each series the label "service" of the process that reports it
)
READS_PAUSED: Final = Counter(
    "railbus_bus_room_full",
    "Number of times that reading paused because the service had reached its limit of unfinished work.",
)
BROKER_AWAY: Final = Gauge("railbus_bus_brokers_away", "Brokers that cannot be reached now.")

# Generator.
GENERATING: Final = Gauge("railbus_generator_running", "Answers that are being generated now.")
GENERATOR_WAITING: Final = Gauge("railbus_generator_waiting", "Accepted requests that wait for the engine.")
EXECUTIONS: Final = Counter(
    "railbus_generator_executions",
    "Runs of attempts that have ended; outcome is finished, failed or cancelled.",
    ["outcome"],
)
GENERATOR_FAILURES: Final = Counter(
    "railbus_generator_failures",
    "Runs of attempts that failed, by the error class of their Failed event.",
    ["error_class"],
)
CHUNKS: Final = Counter("railbus_generator_chunks", "Chunks published.")
TOKENS: Final = Counter("railbus_generator_tokens", "Tokens published.")
DRAFTED: Final = Counter(
    "railbus_generator_drafted_tokens", "Tokens that the draft model, or another method of drafting, proposed."
)
ACCEPTED: Final = Counter(
    "railbus_generator_accepted_tokens",
    "Drafted tokens that the target model accepted. The acceptance rate is this number divided by the drafted tokens.",
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
    "Time from accepting a request to publishing its first chunk, in milliseconds.",
    buckets=_MS_BUCKETS,
)
ABORTED: Final = Counter("railbus_generator_aborted", "Runs of attempts that a Cancel event stopped.")

# Edge.
STREAMS_ACTIVE: Final = Gauge(
    "railbus_edge_streams", "Client streams that are open now; transport is websocket, sse or http.", ["transport"]
)
TENANTS_ACTIVE: Final = Gauge("railbus_edge_tenants", "Tenants that have a stream open now.")
TENANT_STREAMS_MOST: Final = Gauge(
    "railbus_edge_tenant_streams_most", "Number of open streams of the tenant that has the most open streams now."
)
EDGE_CONNECTIONS: Final = Gauge(
    "railbus_edge_connections",
    "Open connections; kind is idle (no request), http, websocket, or refused (over a limit: only health checks are "
    "answered).",
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
    "Time from the receipt of an interactive request to sending its first text, in milliseconds: how long a person "
    "waits.",
    buckets=_MS_BUCKETS,
)
EXPOSED_TOKENS: Final = Histogram(
    "railbus_edge_exposed_tokens",
    "Maximum number of tokens that were shown and not yet cleared, one observation for each connection.",
    buckets=(0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 1_024),
)
EXPOSURE_MS: Final = Histogram(
    "railbus_edge_exposure_ms",
    "Longest time for which text was shown before it was recalled, in milliseconds, one observation for each "
    "connection that was shown such text.",
    buckets=_MS_BUCKETS,
)
OPS_SENT: Final = Counter("railbus_edge_ops", "Ops (instructions to clients) that were sent.")
SENDS_DROPPED: Final = Counter("railbus_edge_dropped", "Connections dropped because their client read too slowly.")
RESUMES: Final = Counter(
    "railbus_edge_resumes", "Streams that were resumed at a position or read again from their start."
)

# Router.
ROUTER_OPEN: Final = Gauge("railbus_router_open", "Requests that are not closed yet.")
REQUESTS_CLOSED: Final = Counter("railbus_router_closed", "Requests closed, by lane and outcome.", ["lane", "outcome"])
CLOSED_CAUSES: Final = Counter(
    "railbus_router_closed_causes",
    "Closed events written, by cause. A Closed event that has no effect because another one came first counts, too.",
    ["cause"],
)
BREAKER_OPEN: Final = Gauge(
    "railbus_router_breaker_open",
    "1 while the circuit breaker sends new requests to the cloud or tests the self-hosted engines, otherwise 0.",
)
FALLBACK_USED: Final = Gauge(
    "railbus_router_fallback_used",
    "Spent share of the last minute's fallback budget: of the allowed attempts or of the allowed money, whichever is "
    "larger. At least 1 for a minute after the budget has refused an attempt.",
)
CUTOVERS: Final = Counter("railbus_router_cutovers", "Cutover events written, by trigger.", ["trigger"])
CANCELS: Final = Counter("railbus_router_cancels", "Cancel events written, by reason.", ["reason"])
DEAD_LETTERS: Final = Counter("railbus_router_dead_letters", "Dead letters written.")

# Rails.
JUDGING: Final = Gauge("railbus_rails_judging", "Requests whose prompts are being judged now.")
VERDICTS: Final = Counter("railbus_rails_verdicts", "Verdicts written; decision is allow, deny or mask.", ["decision"])
VERDICT_MS: Final = Histogram(
    "railbus_rails_verdict_ms",
    "Time from when the rails service read a request until it decided, in milliseconds.",
    buckets=_MS_BUCKETS,
)
RAIL_OUTCOMES: Final = Counter(
    "railbus_rails_outcomes",
    "Results of rails in verdicts, by the rail's name in the policy and by result.",
    ["rail", "result"],
)
RAIL_MS: Final = Histogram(
    "railbus_rails_rail_ms",
    "Duration of a rail, in milliseconds. Cancelled rails do not count.",
    ["rail"],
    buckets=_MS_BUCKETS,
)
VERDICT_CACHE: Final = Counter(
    "railbus_rails_cache",
    "Look-ups of cached results of rails, in the process and in Redis; outcome is hit or miss.",
    ["outcome"],
)

# Safety.
SAFETY_OPEN: Final = Gauge("railbus_safety_open", "Requests whose answers are being checked now.")
RECALLS: Final = Counter(
    "railbus_safety_recalls",
    "Recall events written, by action (stop or redact) and by category of the rule.",
    ["action", "category"],
)
CLEARED: Final = Counter("railbus_safety_cleared", "Cleared events written.")
LOOKS: Final = Counter(
    "railbus_safety_looks",
    "Windows of text given to a check, by tier (1: NeMo rails, 2: classifiers); outcome is seen, or unchecked if the "
    "check failed.",
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
    "Spans of closed requests; outcome is exported, dropped (too many spans waited, or the process ended) or failed "
    "(the collector did not accept them).",
    ["outcome"],
)
TRACER_UNTRACED: Final = Counter(
    "railbus_tracer_untraced",
    "Requests without a trace; reason is unsampled (their traceparent is not sampled), unclosed (a receipt came, but "
    "no account), crowded (too many requests were remembered) or incomplete (an older router wrote the account, or the "
    "router had not read the Request).",
    ["reason"],
)

# Policy. Rails and safety load the whole policy, edge and router only its classes.
POLICY_REFUSED: Final = Counter(
    "railbus_policy_refused",
    "Edits of the policy that were refused while the service was running. The previous version stays in use.",
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
    "Lines of unfinished jobs that have no result yet. A job counts after its input was read. Every batch service "
    "reports the same number.",
)
BATCH_OLDEST_SECONDS: Final = Gauge(
    "railbus_batch_oldest_job_seconds",
    "Age of the oldest unfinished job, in seconds; 0 if there is none. Every batch service reports the same age.",
)
BATCH_TIME_USED: Final = Gauge(
    "railbus_batch_time_used",
    "Share of a job's time from submission to expiry that has passed, for the unfinished job with the largest share. "
    "At 1, the job expires. Every batch service reports the same share.",
)
BATCH_LINES_OPEN: Final = Gauge(
    "railbus_batch_lines_open",
    "Lines that were submitted or wait for a retry, and have no result yet. Only the batch service that runs the jobs "
    "counts them.",
)
BATCH_WINDOW: Final = Gauge(
    "railbus_batch_window",
    "Maximum number of requests that the running jobs may have open now. It decreases when requests expire in a queue.",
)
BATCH_LINES: Final = Counter(
    "railbus_batch_lines",
    "Lines that got their result; outcome is completed or failed. After a crash, lines of the last second may count "
    "twice.",
    ["outcome"],
)
BATCH_RETRIES: Final = Counter(
    "railbus_batch_retries", "Requests that were submitted for a line after its first request."
)

# Ledger.
LEDGER_READ: Final = Counter(
    "railbus_ledger_read", "Records on railbus.accounts and railbus.receipts that the ledger has processed."
)
LEDGER_LATE: Final = Counter(
    "railbus_ledger_late", "Accounts and receipts left out because they came after their window was sealed."
)
LEDGER_OPEN: Final = Gauge("railbus_ledger_open", "Requests that the ledger remembers: their windows may still change.")
LEDGER_WINDOWS: Final = Counter(
    "railbus_ledger_windows", "Windows published. A window that has changed is published, and counted, again."
)

# Archiver.
ARCHIVED: Final = Counter("railbus_audit_archived", "Records written to the archive, by topic.", ["topic"])
ARCHIVE_FILES: Final = Counter("railbus_audit_files", "Files written to the archive, by topic.", ["topic"])
ARCHIVE_BUFFERED: Final = Gauge(
    "railbus_audit_buffered_bytes", "Bytes of memory for records that wait to be written to a file."
)
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
