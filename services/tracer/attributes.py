"""Attributes of exported spans, named by OpenTelemetry's GenAI conventions where possible. Pure functions."""

from collections.abc import Mapping, Sequence
from typing import Final

from schemas.account_details import RequestDetails, RunDetails
from schemas.side_events import Account, AttemptAccount, Detached

AttributeValue = str | bool | int | float | Sequence[str]
Attributes = dict[str, AttributeValue]

PROVIDERS: Final[Mapping[str, str]] = {"vertex": "gcp.vertex_ai"}
"""For each engine, its provider's name in the conventions. For other engines the name of the engine is used."""


def request_attributes(account: Account, request: RequestDetails) -> Attributes:
    found: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "railbus",
        "gen_ai.request.model": request.model,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": request.temperature,
        "gen_ai.request.top_p": request.top_p,
        "railbus.request_id": account.request_id,
        "railbus.tenant": account.tenant,
        "railbus.lane": account.lane,
        "railbus.delivery": request.delivery,
    }
    if request.seed is not None:
        found["gen_ai.request.seed"] = request.seed
    return found


def end_attributes(account: Account, receipt: Detached | None, clock_skew_ms: float) -> Attributes:
    values: Attributes = {
        "gen_ai.response.id": account.request_id,
        "railbus.outcome": account.outcome,
        "railbus.attempt": account.voice or 1,
        "railbus.hidden_rails_ms": account.hidden_rails_ms,
        "railbus.governance_first_text_ms": account.governance_first_text_ms,
        "railbus.governance_total_ms": account.governance_total_ms,
    }
    if clock_skew_ms:
        values["railbus.clock_skew_ms"] = clock_skew_ms
    if account.cause is not None:
        values["railbus.cause"] = account.cause
    if account.first_text_ms is not None:
        values["gen_ai.response.time_to_first_chunk"] = account.first_text_ms / 1_000
    if receipt is not None:
        values |= {"railbus.exposed_tokens": receipt.exposed_tokens, "railbus.exposure_ms": receipt.exposure_ms}
    attempt = next((each for each in account.attempts if each.attempt == (account.voice or 1)), None)
    if attempt is not None and attempt.model is not None:
        values["gen_ai.response.model"] = attempt.model
        if attempt.details is not None and attempt.details.finish_reason is not None:
            values |= _usage(attempt) | {"gen_ai.response.finish_reasons": [attempt.details.finish_reason]}
    return values


def attempt_attributes(request: RequestDetails, attempt: AttemptAccount, run: RunDetails) -> Attributes:
    """Return the attributes of an attempt's span. They never include the error message, which may quote the prompt."""
    engine = attempt.engine or "unknown"
    values: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": PROVIDERS.get(engine, engine),
        "gen_ai.request.model": request.model,
        "gen_ai.response.model": attempt.model or "unknown",
        "railbus.attempt": attempt.attempt,
        "railbus.run": attempt.run or "unknown",
        "railbus.engine": engine,
    }
    if run.timings is not None and run.finish_reason is not None:
        values |= _usage(attempt)
        values["gen_ai.response.finish_reasons"] = [run.finish_reason]
        values["railbus.queue_ms"] = run.timings.queue_ms
        values["railbus.prefill_ms"] = run.timings.prefill_ms
        values["railbus.decode_ms"] = run.timings.decode_ms
    if attempt.speculation is not None:
        values["railbus.drafted_tokens"] = attempt.speculation.drafted
        values["railbus.accepted_tokens"] = attempt.speculation.accepted
    if attempt.error_class is not None:
        values |= _usage(attempt) | {"error.type": attempt.error_class}
    if run.retryable is not None:
        values["railbus.retryable"] = run.retryable
    return values


def _usage(attempt: AttemptAccount) -> Attributes:
    found: Attributes = {
        "gen_ai.usage.input_tokens": attempt.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": attempt.usage.completion_tokens,
    }
    if attempt.usage.cached_tokens:
        found["gen_ai.usage.cache_read.input_tokens"] = attempt.usage.cached_tokens
    return found
