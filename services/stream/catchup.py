"""Compute the ops for a client that reconnects. They show no text that was recalled in the meantime."""

from collections.abc import Sequence

from msgspec.structs import replace

from services.stream.ops import Close, Finish, Op, Refuse, Replace, Restart, Show, Withdraw

_Unsent = list[Show | Replace]


def catch_up(visible_length: int, ops: Sequence[Op]) -> tuple[Op, ...]:
    """Return ops that lead to the same visible text as ``ops``, but never show text that ``ops`` removes later.

    Args:
        visible_length: Number of code points of the text that the client shows.
        ops: The ops that the client has missed.
    """
    if not any(isinstance(op, Replace | Withdraw | Restart | Refuse) for op in ops):
        return tuple(ops)
    # If the reader got all missed ops one by one, recalled text would be visible for a moment.
    held = visible_length  # length of the reader's text, which the unsent text follows
    unsent: _Unsent = []
    edits: list[Op] = []
    head: list[Op] = []
    tail: list[Op] = []
    for op in ops:
        match op:
            case Show():
                unsent.append(op)
            case Replace() if op.start < held:
                edits.append(replace(op, end=min(op.end, held)))
                unsent = _splice(unsent, 0, max(op.end - held, 0), None)
                held += len(op.text) - (min(op.end, held) - op.start)
            case Replace():
                unsent = _splice(unsent, op.start - held, op.end - held, op)
            case Withdraw() | Refuse() | Restart():
                held = 0 if isinstance(op, Restart) else len(op.text)
                unsent, edits = [], []
                if isinstance(op, Restart):
                    tail.clear()  # another attempt answers, so the answer is not finished
                head.append(op)
            case _:
                (tail if isinstance(op, Finish | Close) else head).append(op)
    return (*head, *edits, *_placed(unsent, held), *tail)


def _splice(unsent: _Unsent, start: int, end: int, insert: Replace | None) -> _Unsent:
    before: _Unsent = []
    after: _Unsent = []
    position = 0
    for op in unsent:
        low, high = start - position, end - position
        position += len(op.text)
        if low > 0:
            before.append(_cut(op, 0, low))
        if high < len(op.text):
            after.append(_cut(op, max(high, 0), len(op.text)))
    return [op for op in (*before, *([insert] if insert else []), *after) if op.text or isinstance(op, Replace)]


def _cut(op: Show | Replace, low: int, high: int) -> Show | Replace:
    if isinstance(op, Show):  # the first part counts all tokens
        return replace(op, text=op.text[low:high], tokens=op.tokens if low == 0 else 0)
    return replace(op, text=op.text[low:high])


def _placed(unsent: _Unsent, held: int) -> list[Op]:
    ops: list[Op] = []
    for op in unsent:
        # The redacted text was never sent, so a redaction only inserts its replacement.
        ops.append(replace(op, start=held, end=held) if isinstance(op, Replace) else op)
        held += len(op.text)
    return ops
