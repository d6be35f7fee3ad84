"""Recompute what clients of one request saw, from its records. Pure functions."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from schemas.side_events import Attached, Detached
from schemas.stream import StreamEvent
from schemas.topics import STREAMS
from services.bus import Received
from services.stream import AS_STARTED, Governance, Screen, catch_up
from services.stream.ops import Op, Refuse, Replace, Restart, Withdraw, apply, encode_op

MOST_LINES: Final = 2_000_000
"""Maximum number of ops that are hashed, as lines of JSON, to check the receipt of one connection."""


class FoldedOp(NamedTuple):
    """An op (an instruction to a client), and the record from which it was computed.

    Attributes:
        op_id: ``partition:offset:index``. ``3:120:0`` is the first op of the record at offset 120 of partition 3 of
            ``railbus.streams``.
        at_ms: The record's append time, in milliseconds since the epoch.
    """

    op: Op
    op_id: str
    at_ms: int
    event: int  # index among the request's records of railbus.streams


def refold(request_id: str, records: Sequence[Received], governance: Governance = AS_STARTED) -> list[FoldedOp]:
    screen, found = Screen(request_id, governance), []
    for number, record in enumerate(stream_records(records)):
        assert isinstance(record.event, StreamEvent), "stream_records chooses them"  # noqa: S101 - for the type checker
        for index, op in enumerate(screen.feed(record.event, record.timestamp_ms)):
            op_id = f"{record.partition}:{record.offset}:{index}"
            found.append(FoldedOp(op, op_id, record.timestamp_ms, number))
    return found


def stream_records(records: Sequence[Received]) -> Iterator[Received]:
    return (record for record in records if record.topic == STREAMS.name and isinstance(record.event, StreamEvent))


def visible_after(ops: Sequence[FoldedOp]) -> Iterator[tuple[FoldedOp, str]]:
    visible = ""
    for folded in ops:
        visible = apply(visible, folded.op)
        yield folded, visible


class ReceiptCheck(NamedTuple):
    """The result of comparing a receipt with the log. A receipt says what a client was sent on one connection.

    Attributes:
        resumed_from: Id of the op after which the client resumed the answer; None if it did not resume.
        matches: Whether the receipt agrees with the log; None if the check would take too long.
    """

    receipt: Detached
    resumed_from: str | None
    matches: bool | None
    first: int = 0  # number of ops before the first that was sent on this connection
    shortened: bool = False  # whether the client was sent a history without withdrawn text


def check_receipts(records: Sequence[Received], ops: Sequence[FoldedOp]) -> list[ReceiptCheck]:
    resumed = {r.event.connection: r.event.resumed_from for r in records if isinstance(r.event, Attached)}
    receipts = [record.event for record in records if isinstance(record.event, Detached)]
    return [_check(receipt, resumed.get(receipt.connection), ops) for receipt in receipts]


def refold_as_sent(request_id: str, records: Sequence[Received]) -> tuple[list[FoldedOp], list[ReceiptCheck]]:
    """Compute the ops that the edge sent for a request, and compare the request's receipts with them."""
    # The ops depend on settings of the edge that are not on the log, so both are tried.
    found = []
    for governance in (AS_STARTED, Governance()):
        ops = refold(request_id, records, governance)
        found.append((ops, check_receipts(records, ops)))
        if all(check.matches for check in found[-1][1]):
            return found[-1]
    return max(found, key=lambda each: sum(check.matches is True for check in each[1]))


def _check(receipt: Detached, resumed_from: str | None, ops: Sequence[FoldedOp]) -> ReceiptCheck:
    first = 0
    if resumed_from is not None:
        first = next((index + 1 for index, folded in enumerate(ops) if folded.op_id == resumed_from), -1)
        if first < 0:
            return ReceiptCheck(receipt, resumed_from, matches=False)
    rest = ops[first:]
    lines = [encode_op(folded.op) + b"\n" for folded in rest]
    if _hash(lines[: receipt.ops]) == receipt.ops_hash and receipt.ops <= len(lines):
        return ReceiptCheck(receipt, resumed_from, matches=True, first=first)
    visible = [0, *(len(text) for _, text in visible_after(ops))][first:]
    budget = MOST_LINES
    ends = _history_ends(rest)
    begun = hashlib.sha256()
    # A client that joins a running answer is first sent its history, without text that was already taken back. The
    # receipt does not say where the history ended, so every possible end is tried.
    for sent in range(len(rest)):  # number of ops sent before the shortened history
        if sent:
            begun.update(lines[sent - 1])
        for end in (end for end in ends if end > sent):
            shortened = catch_up(visible[sent], [folded.op for folded in rest[sent:end]])
            budget -= receipt.ops
            if budget < 0:
                return ReceiptCheck(receipt, resumed_from, matches=None, first=first)
            told = begun.copy()
            told.update(b"".join([*(encode_op(op) + b"\n" for op in shortened), *lines[end:]][: receipt.ops - sent]))
            enough = sent + len(shortened) + len(lines) - end >= receipt.ops >= sent
            if enough and told.hexdigest() == receipt.ops_hash:
                return ReceiptCheck(receipt, resumed_from, matches=True, first=first, shortened=True)
    return ReceiptCheck(receipt, resumed_from, matches=False, first=first)


def _history_ends(ops: Sequence[FoldedOp]) -> list[int]:
    ends = set()
    for index, folded in enumerate(ops):
        if isinstance(folded.op, Replace | Withdraw | Restart | Refuse):
            last = index
            while last + 1 < len(ops) and ops[last + 1].event == folded.event:
                last += 1
            ends.add(last + 1)
    return sorted(ends)


def _hash(lines: Sequence[bytes]) -> str:
    return hashlib.sha256(b"".join(lines)).hexdigest()
