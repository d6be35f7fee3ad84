"""Attributes of spans: by OpenTelemetry's GenAI conventions where they have a name, else ``railbus.*``. Pure.

Nothing that a user or a model wrote is ever an attribute.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from schemas.requests import Request
from schemas.side_events import Detached
from schemas.stream import Closed, Failed, Finished, Started
from services.stream.latency import Latency

AttributeValue = str | bool | int | float | Sequence[str]
Attributes = dict[str, AttributeValue]

PROVIDERS: Final[Mapping[str, str]] = {"vertex": "gcp.vertex_ai"}
"""The conventions' names of providers, by the name of our engine; any other engine is its own provider."""


def request_attributes(request: Request) -> Attributes:
    """Return what was asked for, without the prompt."""
    found: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "railbus",
        "gen_ai.request.model": request.model,
        "gen_ai.request.max_tokens": request.sampling.max_tokens,
        "gen_ai.request.temperature": request.sampling.temperature,
        "gen_ai.request.top_p": request.sampling.top_p,
        "gen_ai.output.type": "text",
        "railbus.request_id": request.request_id,
        "railbus.tenant": request.tenant,
        "railbus.lane": request.lane,
        "railbus.delivery": request.delivery.mode,
    }
    if request.sampling.seed is not None:
        found["gen_ai.request.seed"] = request.sampling.seed
    return found


def end_attributes(
    closed: Closed, found: Latency, receipt: Detached | None, runs: Sequence[Started | Finished]
) -> Attributes:
    """Return how a request ended, and what the attempt that answered used."""
    values: Attributes = {
        "gen_ai.response.id": closed.request_id,
        "railbus.outcome": closed.outcome,
        "railbus.attempt": closed.attempt or 1,
        "railbus.hidden_rails_ms": found.hidden_rails_ms,
        "railbus.governance_first_text_ms": found.governance_first_text_ms,
        "railbus.governance_total_ms": found.governance_total_ms,
        "railbus.clock_skew_ms": found.clock_skew_ms,
    }
    if closed.cause is not None:
        values["railbus.cause"] = closed.cause
    if found.first_text_ms is not None:
        values["gen_ai.response.time_to_first_chunk"] = found.first_text_ms / 1_000
    if receipt is not None:
        values |= {"railbus.exposed_tokens": receipt.exposed_tokens, "railbus.exposure_ms": receipt.exposure_ms}
    for event in runs:
        values |= {"gen_ai.response.model": event.model} if isinstance(event, Started) else usage_attributes(event)
    return values


def attempt_attributes(request: Request, started: Started) -> Attributes:
    """Return who answers in an attempt."""
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDERS.get(started.engine, started.engine),
        "gen_ai.request.model": request.model,
        "gen_ai.response.model": started.model,
        "railbus.attempt": started.attempt,
        "railbus.run": started.run,
        "railbus.engine": started.engine,
    }


def usage_attributes(finished: Finished) -> Attributes:
    """Return the tokens that were used, and why the answer ended."""
    return {
        "gen_ai.response.finish_reasons": [finished.finish_reason],
        "gen_ai.usage.input_tokens": finished.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": finished.usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": finished.usage.cached_tokens,
    }


def finished_attributes(finished: Finished) -> Attributes:
    """Return what an attempt used, and where the engine's time went."""
    values = usage_attributes(finished) | {
        "railbus.queue_ms": finished.timings.queue_ms,
        "railbus.prefill_ms": finished.timings.prefill_ms,
        "railbus.decode_ms": finished.timings.decode_ms,
    }
    if finished.speculation is not None:
        values |= {
            "railbus.drafted_tokens": finished.speculation.drafted,
            "railbus.accepted_tokens": finished.speculation.accepted,
        }
    return values


def failed_attributes(failed: Failed) -> Attributes:
    """Return why an attempt failed; its message may quote the engine, so it stays on the log."""
    return {
        "error.type": failed.error_class,
        "gen_ai.usage.input_tokens": failed.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": failed.usage.completion_tokens,
        "railbus.retryable": failed.retryable,
    }
