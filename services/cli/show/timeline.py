"""Format one request: its events and ops, its receipts, and its latency. Pure functions.

An op is an instruction to a client, such as to show text. A receipt says what a client was sent on one connection.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from schemas.base import Event
from schemas.requests import Request
from schemas.stream import StreamEvent
from services.bus import Received
from services.cli.audit.refold import ReceiptCheck
from services.cli.show.event_format import describe_event
from services.cli.show.terminal import printable
from services.stream import Screen
from services.stream.latency import WAITS_FOR, Latency, LogEvent
from services.stream.ops import Begin, Close, Finish, Op, Refuse, Replace, Restart, Show, Withdraw

MAX_SEEN_CHARS = 60
"""Maximum number of characters that are shown of the text of one op."""


def in_log_order(records: Iterable[Received]) -> list[Received]:
    """Sort a request's records by append time. Records of one topic stay in the order of their offsets."""
    latest: dict[str, int] = {}
    placed: list[tuple[int, str, int, Received]] = []
    for record in sorted(records, key=lambda each: (each.topic, each.offset)):
        latest[record.topic] = max(record.timestamp_ms, latest.get(record.topic, 0))
        placed.append((latest[record.topic], record.topic, record.offset, record))
    return [record for _, _, _, record in sorted(placed, key=lambda each: each[:3])]


def timeline(request_id: str, events: Sequence[LogEvent], *, prompts: bool) -> list[str]:
    screen, lines = Screen(request_id), []
    zero_ms = events[0].appended_ms
    for appended_ms, event in events:
        ops = screen.feed(event, appended_ms) if isinstance(event, StreamEvent) else ()
        text = describe_event(event)
        if prompts and isinstance(event, Request):
            text += "".join(f"\n{'':15}{message.role}: {message.content}" for message in event.messages)
        line = f"{appended_ms - zero_ms:+9d} ms  {type(event).__name__:<9} {text}"
        lines += [_safe(each) for each in line.split("\n")]
        lines += [f"{'':14}-> {_safe(_seen(op))}" for op in ops if not isinstance(op, Begin)]
    return lines


def receipts(checks: Sequence[ReceiptCheck], ops: int) -> list[str]:
    lines = []
    for check in checks:
        receipt = check.receipt
        begin = f" after {check.resumed_from}" if check.resumed_from is not None else ""
        if check.matches is None:
            verdict = "was sent too much to find out what it was"
        elif not check.matches:
            verdict = "was sent other ops than the log gives"
        elif check.shortened:
            verdict = f"was sent what the log gives{begin}, without text that had been taken back by then"
        else:
            verdict = f"was sent exactly the first {receipt.ops} of {ops - check.first} ops that the log gives{begin}"
        lines.append(f"connection {_safe(receipt.connection)} {verdict}")
    return lines


def latency_table(found: Latency) -> list[str]:
    lines = [f"{'waited for':<16} {'ms':>9} {'share':>6}  which is"]
    whole = found.total_ms or 1.0
    lines += [f"{name:<16} {ms:9.1f} {ms / whole:6.1%}  {WAITS_FOR[name]}" for name, ms in found.parts]
    lines.append(f"{'in all':<16} {found.total_ms:9.1f}         from receipt to the last byte")
    if found.first_text_ms is not None:
        lines.append(f"{'to first text':<16} {found.first_text_ms:9.1f}")
    lines.append(
        f"governance spent {found.governance_first_text_ms:.1f} ms of the first text and"
        f" {found.governance_total_ms:.1f} ms of the whole answer;"
        f" {found.hidden_rails_ms:.1f} ms of the rails were hidden"
    )
    if found.earned_ms is not None:
        lines.append(
            f"speculation earned {found.earned_ms:.1f} ms: {found.tokens} tokens in {found.decode_ms:.1f} ms"
            f" instead of {found.plain_decode_ms:.1f} ms"
        )
    if found.clock_skew_ms:
        lines.append(f"the clocks of edge and broker differ by {abs(found.clock_skew_ms):.1f} ms or more")
    return lines


def latency_json(found: Latency) -> dict[str, Any]:
    return {
        "parts": [{"part": name, "ms": round(ms, 3)} for name, ms in found.parts],
        "total_ms": round(found.total_ms, 3),
        "first_text_ms": None if found.first_text_ms is None else round(found.first_text_ms, 3),
        "governance_first_text_ms": round(found.governance_first_text_ms, 3),
        "governance_total_ms": round(found.governance_total_ms, 3),
        "hidden_rails_ms": round(found.hidden_rails_ms, 3),
        "speculation_earned_ms": None if found.earned_ms is None else round(found.earned_ms, 3),
        "decode_ms": round(found.decode_ms, 3),
        "tokens": found.tokens,
        "clock_skew_ms": round(found.clock_skew_ms, 3),
    }


def belongs_to(request_id: str, record: Received) -> bool:
    return isinstance(record.event, Event) and record.event.request_id == request_id


def _seen(op: Op) -> str:
    match op:
        case Show():
            return f"shows {_cut(op.text)}"
        case Replace():
            return f"replaces characters {op.start} to {op.end} by {_cut(op.text)} ({op.category})"
        case Withdraw():
            return f"withdraws the answer: {_cut(op.text)} ({op.category})"
        case Restart():
            return f"empties the screen: attempt {op.attempt} answers ({op.trigger})"
        case Refuse():
            return f"refuses: {_cut(op.text)}"
        case Finish():
            return f"is complete ({op.finish_reason})"
        case Close():
            return f"ends: {op.outcome}"
        case Begin():
            return f"attempt {op.attempt} begins"


def _cut(text: str) -> str:
    return repr(text if len(text) <= MAX_SEEN_CHARS else text[:MAX_SEEN_CHARS] + "…")


def _safe(text: str) -> str:
    return printable(text).replace("\t", " ").rstrip()
