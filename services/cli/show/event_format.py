"""Format an event as one line of text or one JSON object. Pure functions."""

import base64
from collections.abc import Callable
from typing import Any, Final, get_args

import msgspec
import orjson

from schemas.base import AnyEvent, Event
from schemas.batches import BatchControl, BatchCreated, BatchFinished, BatchProgress
from schemas.registry import KINDS
from schemas.requests import Request
from schemas.side_events import Account, Attached, Cancel, DeadLetter, Detached, Window
from schemas.stream import Chunk, Cleared, Closed, Conclusion, Cutover, Failed, Finished, Recall, Started, Verdict
from services.bus import Received, UnreadableRecord
from services.cli.show.terminal import printable

MAX_TEXT_CHARS: Final = 200
"""Maximum number of characters that are shown of one text."""

_SHOWN_ELSEWHERE: Final = frozenset({"request_id", "at"})
"""Fields that a line shows in columns of their own."""


def event_time_us(record: Received | UnreadableRecord) -> int:
    """Return the event's time in microseconds since the epoch. If there is none, return the record's append time."""
    at_us: int | None = getattr(record.event, "at", None) if isinstance(record, Received) else None
    return record.timestamp_ms * 1_000 if at_us is None else at_us


def event_line(record: Received | UnreadableRecord, zero_us: int, *, prompts: bool) -> str:
    """Format a record as one line. Its time is shown in milliseconds since ``zero_us``."""
    when = f"{(event_time_us(record) - zero_us) / 1_000:+11.1f} ms"
    place = f"{record.topic.removeprefix('railbus.')} {record.partition}:{record.offset}"
    if isinstance(record, UnreadableRecord):
        return _one_line(f"{when}  {place:<24} (unreadable) {record.error}"[:1_000])
    event = record.event
    kind = type(event).__name__
    about = event.request_id[-8:] if isinstance(event, Event) else "-"
    text = describe_event(event)
    if prompts:
        text += "".join(f" {msgspec.json.encode(getattr(event, name)).decode()}" for name in KINDS[kind].prompts)
    return _one_line(f"{when}  {place:<24} {about:<8} {kind:<10} {text}")


def describe_event(event: AnyEvent) -> str:
    return _DESCRIPTIONS.get(type(event), _fields)(event)


def event_json(record: Received | UnreadableRecord, *, prompts: bool) -> str:
    """Return the record as a JSON object. If ``prompts`` is false, prompts and unreadable values are null."""
    place: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
    }
    if isinstance(record, UnreadableRecord):
        value = None if record.value is None or not prompts else base64.b64encode(record.value).decode()
        return orjson.dumps(place | {"unreadable": str(record.error), "value_b64": value}).decode()
    kind = type(record.event).__name__
    body = msgspec.to_builtins(record.event)
    if not prompts:
        body |= dict.fromkeys(KINDS[kind].prompts)
    return orjson.dumps(place | {"kind": kind, "traceparent": record.traceparent, "event": body}).decode()


def _one_line(text: str) -> str:
    return printable(text).replace("\n", " ").replace("\t", " ").rstrip()


def _quoted(text: str) -> str:
    shown = text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + "…"
    return orjson.dumps(shown).decode()


def _fields(event: AnyEvent) -> str:
    hidden = _SHOWN_ELSEWHERE.union(KINDS[type(event).__name__].prompts)
    shown = ((name, getattr(event, name)) for name in event.__struct_fields__ if name not in hidden)
    return ", ".join(f"{name} {_quoted_json(value)}" for name, value in shown)


def _quoted_json(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + "…"


def _request(event: Request) -> str:
    size = sum(len(message.content) for message in event.messages)
    return (
        f"attempt {event.attempt} {event.lane} model {event.model} {len(event.messages)} message(s), {size} characters"
    )


def _verdict(event: Verdict) -> str:
    rails = ", ".join(f"{rail.rail} {rail.result} {rail.ms:.1f} ms" for rail in event.rails)
    return f"{event.decision} in {event.total_ms:.1f} ms {f'({rails})' if rails else ''}"


def _started(event: Started) -> str:
    off = "".join(
        f", {name} off"
        for name, value in (("input gate", event.input_gate), ("output check", event.output_check))
        if value == "off"
    )
    return f"attempt {event.attempt} {event.engine} {event.model}, queued {event.queue_ms:.1f} ms{off}"


def _chunk(event: Chunk) -> str:
    drafted = f", {event.accepted} of {event.drafted} drafted" if event.drafted else ""
    return f"attempt {event.attempt} #{event.seq} {_quoted(event.text)} ({event.tokens} token(s){drafted})"


def _finished(event: Finished) -> str:
    tokens = f"{event.usage.prompt_tokens} + {event.usage.completion_tokens} tokens"
    return f"attempt {event.attempt} {event.finish_reason}, {tokens}, last #{event.last_seq}"


def _failed(event: Failed) -> str:
    return f"attempt {event.attempt} {event.error_class}: {_quoted(event.message)}"


def _cutover(event: Cutover) -> str:
    return f"to attempt {event.attempt} on {event.target}, {event.trigger}, {event.how}"


def _cleared(event: Cleared) -> str:
    return f"attempt {event.attempt} through #{event.seq}{', final' if event.final else ''}"


def _recall(event: Recall) -> str:
    span = f"[{event.start}:{event.end}]"
    return (
        f"attempt {event.attempt} {event.action} {span} -> {_quoted(event.replacement)} {event.rule} ({event.category})"
    )


def _closed(event: Closed) -> str:
    cause = f"({event.cause}) " if event.cause and event.cause not in get_args(Conclusion) else ""
    return f"{event.outcome} {cause}{_quoted(event.reason) if event.reason else ''}"


def _cancel(event: Cancel) -> str:
    return f"{'all attempts' if event.attempt is None else f'attempt {event.attempt}'}, {event.reason}"


def _attached(event: Attached) -> str:
    return f"{event.transport}{f', resumed from {event.resumed_from}' if event.resumed_from else ''}"


def _detached(event: Detached) -> str:
    first = "no text" if event.first_text_ms is None else f"first text after {event.first_text_ms:.1f} ms"
    return f"{event.reason}, {event.ops} op(s), {first}"


def _account(event: Account) -> str:
    spent = (event.closed_at - event.received_at) / 1_000
    return f"{event.outcome} after {spent:.1f} ms, {len(event.attempts)} attempt(s), {event.recalls} recall(s)"


def _batch_created(event: BatchCreated) -> str:
    return f"{event.batch_id} {event.input_file}, at most {event.window_open} open"


def _batch_control(event: BatchControl) -> str:
    return f"{event.batch_id} {event.action}"


def _batch_progress(event: BatchProgress) -> str:
    totals = event.totals
    return (
        f"{event.batch_id} {totals.completed} completed, {totals.failed} failed, {len(event.open)} open of"
        f" {totals.lines}, epoch {event.epoch}"
    )


def _batch_finished(event: BatchFinished) -> str:
    return f"{event.batch_id} {event.outcome}: {event.totals.completed} completed, {event.totals.failed} failed"


def _window(event: Window) -> str:
    return (
        f"{event.tenant}: {event.requests} request(s), earned {event.earned_ms:.1f} ms, spent {event.spent_ms:.1f} ms"
    )


def _dead(event: DeadLetter) -> str:
    return f"{event.topic} {event.partition}:{event.offset} {_quoted(event.reason)}"


_DESCRIPTIONS: Final[dict[type[AnyEvent], Callable[[Any], str]]] = {
    Request: _request,
    Verdict: _verdict,
    Started: _started,
    Chunk: _chunk,
    Finished: _finished,
    Failed: _failed,
    Cutover: _cutover,
    Cleared: _cleared,
    Recall: _recall,
    Closed: _closed,
    Cancel: _cancel,
    Attached: _attached,
    Detached: _detached,
    BatchCreated: _batch_created,
    BatchControl: _batch_control,
    BatchProgress: _batch_progress,
    BatchFinished: _batch_finished,
    Account: _account,
    Window: _window,
    DeadLetter: _dead,
}
