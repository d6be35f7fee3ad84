"""Draw a scene as a table with three columns: time, text that the reader saw, and events on the log. Pure functions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from schemas.base import AnyEvent
from schemas.requests import Request
from schemas.side_events import Account, Cancel
from schemas.stream import Chunk, Cleared, Closed, Cutover, Failed, Finished, Recall, Started, Verdict
from schemas.topics import STREAMS
from services.bus import Received
from services.cli.demo.annotated_text import AnnotatedText
from services.cli.demo.styled_text import Style, StyledLine, StyledSpan, pad_line, wrap_spans
from services.cli.show.event_format import describe_event, event_time_us
from services.cli.show.terminal import printable
from services.stream import Op

TIME_COLUMNS: Final = 16
"""Width in characters of the column with the time."""

NAME_COLUMNS: Final = 10
"""Width in characters of an event's name."""

GAP_COLUMNS: Final = 2

StreamPosition = tuple[int, int]
"""Partition number and offset on ``railbus.streams``."""

_STYLES: Final[dict[type[AnyEvent], Style]] = {
    Cutover: "warn",
    Cancel: "warn",
    Failed: "bad",
    Recall: "bad",
    Closed: "good",
    Account: "dim",
    Finished: "dim",
    Cleared: "dim",
}


@dataclass(slots=True)
class TimelineRow:
    records: list[Received] = field(default_factory=list)

    @property
    def chunks(self) -> list[Chunk]:
        return [record.event for record in self.records if isinstance(record.event, Chunk)]

    def takes(self, event: AnyEvent) -> bool:
        chunks = self.chunks
        if isinstance(event, Cleared):
            return bool(chunks) and not event.final
        return isinstance(event, Chunk) and bool(chunks) and chunks[-1].attempt == event.attempt and chunks[-1].seq > 0


def written_us(record: Received) -> int:
    # The ``at`` of a later attempt's ``Request`` is the time at which the request arrived.
    if isinstance(record.event, Request) and record.event.attempt > 1:
        return record.timestamp_ms * 1_000 + 999
    return event_time_us(record)


def in_order(records: Sequence[Received]) -> list[Received]:
    """Sort records by time. Records of ``railbus.streams`` stay in the order of ``records``, whatever their times."""
    keyed: list[tuple[int, int, Received]] = []
    newest = 0
    for number, record in enumerate(records):
        when = written_us(record)
        if record.topic == STREAMS.name:
            newest = when = max(newest, when)
        keyed.append((when, number, record))
    return [record for *_, record in sorted(keyed, key=lambda item: item[:2])]


def group_rows(records: Sequence[Received]) -> list[TimelineRow]:
    rows: list[TimelineRow] = []
    for record in in_order(records):
        if not rows or not rows[-1].takes(record.event):
            rows.append(TimelineRow())
        rows[-1].records.append(record)
    return rows


def render_timeline(
    records: Sequence[Received],
    ops: Mapping[StreamPosition, Sequence[Op]],
    columns: int,
    *,
    mark_withdrawn: bool = False,
) -> list[StyledLine]:
    """Return the timeline of one scene of the demo: a table, as lines.

    If ``mark_withdrawn`` is set, dashes stand around withdrawn text.
    """
    rows = group_rows(records)
    if not rows:
        return []
    annotated = AnnotatedText(mark_withdrawn=mark_withdrawn)
    for number, row in enumerate(rows):
        for record in row.records:
            if record.topic == STREAMS.name:
                for op in ops.get((record.partition, record.offset), ()):
                    annotated.take(op, number)
    zero = min(event_time_us(record) for row in rows for record in row.records)
    left = (columns - TIME_COLUMNS - 2 * GAP_COLUMNS) * 9 // 20
    right = columns - TIME_COLUMNS - 2 * GAP_COLUMNS - left
    lines: list[StyledLine] = []
    for number, row in enumerate(rows):
        reader = wrap_spans(annotated.spans_of_row(number), left)
        name, description = _describe_row(row)
        log = [[StyledSpan(" " * NAME_COLUMNS), *line] for line in wrap_spans([description], right - NAME_COLUMNS)]
        log[0][0] = StyledSpan(f"{name.text:<{NAME_COLUMNS}}", name.style)
        for index in range(max(len(reader), len(log))):
            when = _when(row, zero) if index == 0 else ""
            lines.append(
                [
                    StyledSpan(f"{when:>{TIME_COLUMNS}}", "dim"),
                    StyledSpan(" " * GAP_COLUMNS),
                    *pad_line(reader[index] if index < len(reader) else [], left),
                    StyledSpan(" " * GAP_COLUMNS),
                    *(log[index] if index < len(log) else []),
                ]
            )
    return lines


def timeline_header(columns: int) -> StyledLine:
    left = (columns - TIME_COLUMNS - 2 * GAP_COLUMNS) * 9 // 20
    names = (f"{'ms':>{TIME_COLUMNS}}", "what the reader sees".ljust(left), "what is on the log")
    return [StyledSpan((" " * GAP_COLUMNS).join(names), "dim")]


def _when(row: TimelineRow, zero_us: int) -> str:
    first, last = ((written_us(record) - zero_us) / 1e3 for record in (row.records[0], row.records[-1]))
    return f"{first:.1f}" if len(row.records) == 1 else f"{first:.1f} - {last:.1f}"


def _asked(record: Received) -> str:
    event = record.event
    assert isinstance(event, Request)  # noqa: S101 - see _DESCRIPTIONS
    return f"attempt {event.attempt} to {record.topic}"


def _started(record: Received) -> str:
    event = record.event
    assert isinstance(event, Started)  # noqa: S101 - see _DESCRIPTIONS
    return f"attempt {event.attempt} by engine {event.engine}, queued {event.queue_ms:.1f} ms"


def _judged(record: Received) -> str:
    event = record.event
    assert isinstance(event, Verdict)  # noqa: S101 - see _DESCRIPTIONS
    rails = (f"{it.rail}{'' if it.result == 'passed' else f' {it.result}'} {it.ms:.1f}" for it in event.rails)
    return f"{event.decision} in {event.total_ms:.1f} ms ({', '.join(rails)})"


_DESCRIPTIONS: Final[dict[type[AnyEvent], Callable[[Received], str]]] = {
    Request: _asked,
    Started: _started,
    Verdict: _judged,
}
"""For each kind of event that is not described as in ``railbus tail``: the function that describes it here."""


def _describe_row(row: TimelineRow) -> tuple[StyledSpan, StyledSpan]:
    record = row.records[0]
    event = record.event
    chunks = row.chunks
    if len(row.records) > 1 and chunks:
        tokens = sum(chunk.tokens for chunk in chunks)
        cleared = [each.event.seq for each in row.records if isinstance(each.event, Cleared)]
        checked = f", cleared through #{max(cleared)}" if cleared else ""
        many = f"#{chunks[0].seq} - #{chunks[-1].seq}" if len(chunks) > 1 else f"#{chunks[0].seq}"
        return StyledSpan("Chunk"), StyledSpan(f"attempt {chunks[0].attempt} {many}, {tokens} tokens{checked}")
    style = _STYLES.get(type(event), "plain")
    if isinstance(event, Verdict):
        style = "good" if event.decision == "allow" else "bad"
    if isinstance(event, Failed) and event.error_class == "cancelled":
        style = "dim"
    if isinstance(event, Closed) and event.outcome not in {"completed", "recalled", "denied"}:
        style = "bad"
    text = _DESCRIPTIONS[type(event)](record) if type(event) in _DESCRIPTIONS else describe_event(event)
    return StyledSpan(type(event).__name__, style), StyledSpan(printable(text), "dim" if style == "dim" else "plain")
