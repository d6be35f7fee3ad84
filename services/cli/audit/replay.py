import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from services.cli.audit.refold import FoldedOp, visible_after
from services.cli.show.terminal import printable
from services.stream.ops import Begin, Close, Finish, Refuse, Replace, Restart, Show, Withdraw, name_of

LONGEST_WAIT_S: Final = 30.0
"""Maximum pause between two ops while a replay is played. A longer pause is shortened to this."""


def visible_at(ops: Sequence[FoldedOp], at_ms: int) -> str:
    """Return the text that was visible at ``at_ms``, in milliseconds since the epoch."""
    visible = ""
    for folded, text in visible_after(ops):
        if folded.at_ms > at_ms:
            break
        visible = text
    return visible


def replay_lines(ops: Sequence[FoldedOp], zero_ms: int) -> Iterator[str]:
    """Yield a line for each op: its time since ``zero_ms``, the op, and the visible text."""
    for folded, text in visible_after(ops):
        yield f"{folded.at_ms - zero_ms:+9d} ms  {_step(folded):<28} {_one_line(text)}"


async def play(ops: Sequence[FoldedOp], zero_ms: int, speed: float) -> None:
    """Print a line for each op, with the original pauses divided by ``speed``."""
    before_ms = zero_ms
    for folded, line in zip(ops, replay_lines(ops, zero_ms), strict=True):
        await asyncio.sleep(min(max(0, folded.at_ms - before_ms) / 1_000 / speed, LONGEST_WAIT_S))
        before_ms = folded.at_ms
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def _step(folded: FoldedOp) -> str:
    match folded.op:
        case Begin() | Restart():
            return f"{name_of(folded.op)} attempt {folded.op.attempt}"
        case Show():
            return f"show {folded.op.tokens} tokens"
        case Replace() | Withdraw():
            return f"{name_of(folded.op)} ({folded.op.category})"
        case Refuse():
            return "refuse"
        case Finish():
            return f"finish ({folded.op.finish_reason})"
        case Close():
            return f"close ({folded.op.outcome})"


def _one_line(text: str) -> str:
    return printable(text).replace("\n", " ").replace("\t", " ").rstrip()
