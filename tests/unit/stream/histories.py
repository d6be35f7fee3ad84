"""Generate valid and invalid histories of one request from bytes, which Hypothesis can shrink.

A history is a list of events in log order. Each character of generated text shows its source: the character at offset
``j`` of run ``i`` is code point ``0x10000 * (i + 1) + j``. Replacements and refusals are ASCII.
"""

from dataclasses import dataclass, field
from typing import get_args

from schemas.ids import uuid7
from schemas.requests import Deadlines, Delivery
from schemas.stream import (
    Cause,
    Chunk,
    Cleared,
    Closed,
    Cutover,
    Failed,
    Finished,
    Recall,
    Started,
    StreamEvent,
    Verdict,
)

REQUEST_ID = uuid7(1_763_700_000_000, 12345)
MAX_RUNS = 8
CAUSES = get_args(Cause)


class Choices:
    """A source of decisions. Each decision depends on the next byte of ``data``, or on 0 if no byte is left."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._next = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._next

    def below(self, n: int) -> int:
        if self._next >= len(self._data):
            return 0
        self._next += 1
        return self._data[self._next - 1] % n

    def chance(self, percent: int) -> bool:
        return self.below(100) >= 100 - percent

    def pick(self, items):
        return items[self.below(len(items))]


def glyphs(run_index: int, start: int, length: int) -> str:
    return "".join(chr(0x10000 * (run_index + 1) + j) for j in range(start, start + length))


@dataclass
class Run:
    index: int
    attempt: int
    name: str
    length: int = 0
    seq: int = 0
    cleared: int = -1
    ended: bool = False
    final: bool = False


@dataclass
class World:
    """The state of all writers while a history is generated."""

    choices: Choices
    delivery: Delivery
    input_gate: str
    output_check: str
    log: list[StreamEvent] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    at: int = 1_000_000
    recalls: int = 0

    def common(self) -> dict:
        self.at += self.choices.below(20) * 1_000
        return {"request_id": REQUEST_ID, "tenant": "t", "at": self.at, "source": "test/1"}

    def start(self) -> None:
        if len(self.runs) >= MAX_RUNS:
            return
        attempt = 1 if not self.runs else 1 + self.choices.below(4)
        run = Run(index=len(self.runs), attempt=attempt, name=f"run{len(self.runs)}")
        self.runs.append(run)
        self.log.append(
            Started(
                **self.common(),
                attempt=attempt,
                run=run.name,
                model="m",
                engine="test",
                queue_ms=0.0,
                received_at=1,
                delivery=self.delivery,
                deadlines=Deadlines(),
                input_gate=self.input_gate,
                output_check=self.output_check,
            )
        )

    def chunk(self) -> None:
        alive = [run for run in self.runs if not run.ended]
        if not alive:
            return self.start()
        run = self.choices.pick(alive)
        length = 1 + self.choices.below(5)
        event = Chunk(
            **self.common(),
            attempt=run.attempt,
            run=run.name,
            seq=run.seq,
            start=run.length,
            text=glyphs(run.index, run.length, length),
            tokens=1 + self.choices.below(4),
        )
        run.seq += 1
        run.length += length
        self.log.append(event)
        return None

    def end(self) -> None:
        alive = [run for run in self.runs if not run.ended]
        if not alive:
            return
        run = self.choices.pick(alive)
        run.ended = True
        voiced = {"attempt": run.attempt, "run": run.name}
        if self.choices.chance(70):
            self.log.append(Finished(**self.common(), **voiced, last_seq=run.seq - 1, finish_reason="stop"))
        else:
            self.log.append(
                Failed(**self.common(), **voiced, error_class="unavailable", message="gone", retryable=True)
            )

    def verdict(self) -> None:
        decision = self.choices.pick(("allow", "allow", "allow", "mask", "deny"))
        delivery = Delivery(mode="gated") if self.choices.chance(15) else None
        self.log.append(
            Verdict(**self.common(), decision=decision, policy_version="v1", refusal="refused", delivery=delivery)
        )

    def cutover(self) -> None:
        last = max((run.seq for run in self.runs), default=0) - 1
        self.log.append(
            Cutover(
                **self.common(),
                attempt=2 + self.choices.below(3),
                trigger=self.choices.pick(("ttft", "ttft", "hard_error", "stall", "mask")),
                how=self.choices.pick(("cancel", "race")),
                seen_seq=max(-1, last - self.choices.below(2)),
            )
        )

    def clear(self) -> None:
        if not self.runs:
            return
        run = self.choices.pick(self.runs)
        run.final = run.final or (run.ended and self.choices.chance(60))
        run.cleared = run.seq - 1 if run.final else min(run.seq - 1, run.cleared + self.choices.below(4))
        self.log.append(
            Cleared(
                **self.common(),
                attempt=run.attempt,
                run=run.name,
                seq=run.cleared,
                final=run.final,
                policy_version="v1",
            )
        )

    def recall(self) -> None:
        spoken = [run for run in self.runs if run.length]
        if not spoken:
            return
        run = self.choices.pick(spoken)
        start = self.choices.below(run.length + 3)
        self.recalls += 1
        self.log.append(
            Recall(
                **self.common(),
                attempt=run.attempt,
                run=run.name,
                recall_id=f"r{self.recalls}",
                start=start,
                end=start + self.choices.below(7),
                action="stop" if self.choices.chance(25) else "redact",
                replacement=self.choices.pick(("", "#", f"<{self.recalls}>")),
                rule="rule",
                category="pii",
                policy_version="v1",
            )
        )

    def close(self, cause: str | None = None) -> None:
        """Append a ``Closed`` with random fields.

        ``seen_seq`` is at most 2 lower than the highest ``seq`` of the chunks on the log. ``seen_attempts`` is from 1
        to 4.
        """
        last = max((run.seq for run in self.runs), default=0) - 1
        self.log.append(
            Closed(
                **self.common(),
                outcome=self.choices.pick(("completed", "failed", "expired")),
                cause=cause,
                seen_seq=max(-1, last - self.choices.below(3)),
                seen_attempts=1 + self.choices.below(4),
            )
        )

    def again(self) -> None:
        """Append an earlier event again, as a retrying producer or a second owner of the partition may do."""
        if self.log:
            self.log.append(self.log[-1 - self.choices.below(len(self.log))])

    def swap(self) -> None:
        """Swap the last two events if both are chunks.

        A real broker never reorders the chunks of a run. The fold must nevertheless show them in the order of ``seq``.
        """
        if len(self.log) > 1 and isinstance(self.log[-1], Chunk) and isinstance(self.log[-2], Chunk):
            self.log[-1], self.log[-2] = self.log[-2], self.log[-1]


_ACTS = (
    *("chunk",) * 9, *("clear",) * 4, *("recall",) * 2, *("cutover",) * 2, *("start",) * 2, "verdict", "verdict",
    "end", "again", "again", "swap",
)  # fmt: skip


def grow(data: bytes) -> list[StreamEvent]:
    """Generate a history from ``data``. The same bytes always give the same history."""
    choices = Choices(data)
    delivery = Delivery(
        mode=choices.pick(("optimistic", "windowed", "gated")),
        hold_tokens=choices.below(6),
        hold_ms=choices.below(2) * 30,
        max_exposure_tokens=1 + choices.below(12),
    )
    world = World(
        choices=choices,
        delivery=delivery,
        input_gate="off" if choices.chance(15) else "hold",
        output_check="off" if choices.chance(15) else "on",
    )
    while choices.left > 8:
        getattr(world, choices.pick(_ACTS))()
        if choices.chance(3):
            world.close(choices.pick((None, *CAUSES)))
    if choices.chance(80):
        finish_up(world)
    world.close(choices.pick(CAUSES))
    world.close(choices.pick(CAUSES))
    return world.log


def finish_up(world: World) -> None:
    """Append a verdict if the log has none. For each run, append a missing ``Finished`` and the final ``Cleared``."""
    if not any(isinstance(event, Verdict) for event in world.log):
        world.verdict()
    for run in world.runs:
        common = world.common()
        if not run.ended:
            run.ended = True
            world.log.append(
                Finished(**common, attempt=run.attempt, run=run.name, last_seq=run.seq - 1, finish_reason="stop")
            )
        world.log.append(
            Cleared(**common, attempt=run.attempt, run=run.name, seq=run.seq - 1, final=True, policy_version="v1")
        )
