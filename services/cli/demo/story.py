"""One scene as rows: when, what the reader saw, what stands on the log. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from schemas.base import AnyEvent
from schemas.books import Account, Cancel
from schemas.requests import Request
from schemas.stream import Chunk, Cleared, Closed, Cutover, Failed, Finished, Recall, Started, Verdict
from schemas.topics import STREAMS
from services.bus import Received
from services.cli.demo.paper import Paper
from services.cli.demo.spans import Line, Span, Style, padded, wrapped
from services.cli.lines import at_us, says
from services.cli.terminal import printable
from services.stream import Op

TIME: Final = 16
"""Columns for the time."""

NAME: Final = 10
"""Columns for an event's name."""

GAP: Final = 2

Place = tuple[int, int]
"""Partition and offset in the stream log."""

_STYLES: Final[dict[type[AnyEvent], Style]] = {
    Cutover: "warn",
    Cancel: "warn",
    Failed: "bad",
    Recall: "bad",
    Closed: "good",
    Account: "soft",
    Finished: "soft",
    Cleared: "soft",
}


@dataclass(slots=True)
class Row:
    """Events that are told together: one, or a run of chunks of one attempt and of what safety cleared of them.

    Attributes:
        records: They, in order.
    """

    records: list[Received] = field(default_factory=list)

    @property
    def chunks(self) -> list[Chunk]:
        """The chunks in it."""
        return [record.event for record in self.records if isinstance(record.event, Chunk)]

    def takes(self, event: AnyEvent) -> bool:
        """Whether one more event can be told with it. The first chunk of an attempt is told alone."""
        chunks = self.chunks
        if isinstance(event, Cleared):
            return bool(chunks) and not event.final
        return isinstance(event, Chunk) and bool(chunks) and chunks[-1].attempt == event.attempt and chunks[-1].seq > 0


def written_us(record: Received) -> int:
    """When it was written. A request that is asked again keeps its time of receipt: the record's own time tells."""
    if isinstance(record.event, Request) and record.event.attempt > 1:
        return record.timestamp_ms * 1_000 + 999
    return at_us(record)


def in_order(records: Sequence[Received]) -> list[Received]:
    """By time, but what stands on the stream log in its own order, whatever its writers' clocks said."""
    keyed: list[tuple[int, int, Received]] = []
    newest = 0
    for number, record in enumerate(records):
        when = written_us(record)
        if record.topic == STREAMS.name:
            newest = when = max(newest, when)
        keyed.append((when, number, record))
    return [record for *_, record in sorted(keyed, key=lambda item: item[:2])]


def rows_of(records: Sequence[Received]) -> list[Row]:
    """The events of one request, told together where that loses nothing."""
    rows: list[Row] = []
    for record in in_order(records):
        if not rows or not rows[-1].takes(record.event):
            rows.append(Row())
        rows[-1].records.append(record)
    return rows


def story(
    records: Sequence[Received], ops: Mapping[Place, Sequence[Op]], columns: int, *, marks: bool = False
) -> list[Line]:
    """The lines of one scene so far.

    Args:
        records: Of its request.
        ops: Those the edge sent, by the event in the stream log that they came from.
        columns: Width of a line.
        marks: Void text stands between dashes, because it cannot be struck out.
    """
    rows = rows_of(records)
    if not rows:
        return []
    paper = Paper(marks=marks)
    for number, row in enumerate(rows):
        for record in row.records:
            if record.topic == STREAMS.name:
                for op in ops.get((record.partition, record.offset), ()):
                    paper.take(op, number)
    zero = min(at_us(record) for row in rows for record in row.records)
    left = (columns - TIME - 2 * GAP) * 9 // 20
    right = columns - TIME - 2 * GAP - left
    lines: list[Line] = []
    for number, row in enumerate(rows):
        reader = wrapped(paper.cell(number), left)
        name, said = _told(row)
        log = [[Span(" " * NAME), *line] for line in wrapped([said], right - NAME)]
        log[0][0] = Span(f"{name.text:<{NAME}}", name.style)
        for index in range(max(len(reader), len(log))):
            when = _when(row, zero) if index == 0 else ""
            lines.append(
                [
                    Span(f"{when:>{TIME}}", "soft"),
                    Span(" " * GAP),
                    *padded(reader[index] if index < len(reader) else [], left),
                    Span(" " * GAP),
                    *(log[index] if index < len(log) else []),
                ]
            )
    return lines


def heading(columns: int) -> Line:
    """Over the columns."""
    left = (columns - TIME - 2 * GAP) * 9 // 20
    names = (f"{'ms':>{TIME}}", "what the reader sees".ljust(left), "what stands on the log")
    return [Span((" " * GAP).join(names), "soft")]


def _when(row: Row, zero_us: int) -> str:
    first, last = ((written_us(record) - zero_us) / 1e3 for record in (row.records[0], row.records[-1]))
    return f"{first:.1f}" if len(row.records) == 1 else f"{first:.1f} - {last:.1f}"


def _asked(record: Received) -> str:
    event = record.event
    assert isinstance(event, Request)  # noqa: S101 - the table below says so
    return f"attempt {event.attempt} to {record.topic}"


def _started(record: Received) -> str:
    event = record.event
    assert isinstance(event, Started)  # noqa: S101 - the table below says so
    return f"attempt {event.attempt} by engine {event.engine}, queued {event.queue_ms:.1f} ms"


def _judged(record: Received) -> str:
    event = record.event
    assert isinstance(event, Verdict)  # noqa: S101 - the table below says so
    rails = (f"{it.rail}{'' if it.result == 'passed' else f' {it.result}'} {it.ms:.1f}" for it in event.rails)
    return f"{event.decision} in {event.total_ms:.1f} ms ({', '.join(rails)})"


_SAYS: Final[dict[type[AnyEvent], Callable[[Received], str]]] = {
    Request: _asked,
    Started: _started,
    Verdict: _judged,
}
"""Where a scene needs other words than a line of the log."""


def _told(row: Row) -> tuple[Span, Span]:
    """The event's name, and what it says."""
    record = row.records[0]
    event = record.event
    chunks = row.chunks
    if len(row.records) > 1 and chunks:
        tokens = sum(chunk.tokens for chunk in chunks)
        cleared = [each.event.seq for each in row.records if isinstance(each.event, Cleared)]
        checked = f", cleared through #{max(cleared)}" if cleared else ""
        many = f"#{chunks[0].seq} - #{chunks[-1].seq}" if len(chunks) > 1 else f"#{chunks[0].seq}"
        return Span("Chunk"), Span(f"attempt {chunks[0].attempt} {many}, {tokens} tokens{checked}")
    style = _STYLES.get(type(event), "plain")
    if isinstance(event, Verdict):
        style = "good" if event.decision == "allow" else "bad"
    if isinstance(event, Failed) and event.error_class == "cancelled":
        style = "soft"
    if isinstance(event, Closed) and event.outcome not in {"completed", "recalled", "denied"}:
        style = "bad"
    said = _SAYS[type(event)](record) if type(event) in _SAYS else says(event)
    return Span(type(event).__name__, style), Span(printable(said), "soft" if style == "soft" else "plain")
