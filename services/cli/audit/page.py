"""Create the HTML page of one request: a timeline of its events, and the visible text at any time. Pure functions."""

from collections.abc import Sequence
from html import escape
from typing import Final

import msgspec
import orjson

from schemas.stream import Chunk, Recall
from services.bus import Received
from services.cli.audit.refold import FoldedOp, ReceiptCheck
from services.cli.show.event_format import describe_event
from services.cli.show.terminal import printable
from services.cli.show.timeline import receipts
from services.stream.latency import WAITS_FOR, Latency

LANES: Final = ("app", "edge", "rails", "generator", "vertex", "safety", "router", "other")
"""The rows of the drawing, from top to bottom. The first part of an event's ``source`` names its row."""

_ROW: Final = 30
_WIDTH: Final = 1_000
_LEFT: Final = 90
MAX_MARKS: Final = 4_000
"""If a request has twice this number of events, only every second chunk is drawn; if it has three times this number,
every third chunk; and so on."""

PAGE_STYLE: Final = """
:root{color-scheme:light dark;--line:#8884;--mark:#3b6fb5;--bad:#c0392b;--good:#2e8b57}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:62rem;padding:1rem}
h1{font-size:1.2rem;overflow-wrap:anywhere}h2{font-size:1rem;margin-top:1.6rem}
svg{width:100%;height:auto;min-width:36rem}.wide{overflow-x:auto}
svg text{font:12px system-ui,sans-serif;fill:currentColor}
#text{white-space:pre-wrap;border:1px solid var(--line);border-radius:6px;padding:.8rem;min-height:5rem;
overflow-wrap:anywhere}
input[type=range]{width:100%;height:2.2rem}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.15rem .5rem .15rem 0;vertical-align:top}
td:first-child{white-space:nowrap;font-variant-numeric:tabular-nums;text-align:right;padding-right:.8rem}
td:last-child{overflow-wrap:anywhere}.bad{color:var(--bad)}.good{color:var(--good)}small{opacity:.7}
"""

_SEALED: Final = (
    "<p>{} records are sealed and left out. So the text above is not complete, the receipts cannot be checked, and"
    " there is no account of the time.</p>"
)

_SCRIPT: Final = """
const ops=JSON.parse(document.getElementById('ops').textContent),at=document.getElementById('at'),
text=document.getElementById('text'),when=document.getElementById('when');
function draw(){const ms=Number(at.value);let shown=[];
for(const o of ops){if(o.ms>ms)break;
if(o.op=='show')shown.push(...o.text);
else if(o.op=='replace')shown.splice(o.start,o.end-o.start,...o.text);
else if(o.op=='withdraw'||o.op=='refuse')shown=[...o.text];
else if(o.op=='restart')shown=[]}
text.textContent=shown.join('');when.textContent=ms+' ms'}
at.addEventListener('input',draw);draw();
"""


def timeline_page(
    request_id: str,
    records: Sequence[Received],
    ops: Sequence[FoldedOp],
    checks: Sequence[ReceiptCheck],
    latency: Latency | None,
    *,
    sealed: int = 0,
) -> str:
    """Return the self-contained HTML page of one request. Prompts are left out.

    ``sealed`` is the number of records that could not be decrypted and are left out.
    """
    zero_ms = records[0].timestamp_ms
    last_ms = max(record.timestamp_ms for record in records)
    steps = [msgspec.to_builtins(folded.op) | {"ms": folded.at_ms - zero_ms} for folded in ops]
    # `</script`, or `<!--` followed by `<script`, would end the element at another place.
    data = orjson.dumps(steps).decode().replace("<", "\\u003c")
    shown_ms = max((folded.at_ms for folded in ops), default=zero_ms) - zero_ms
    rows = "".join(_row(record, zero_ms) for record in records if not isinstance(record.event, Chunk))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>Request {escape(request_id)}</title><style>{PAGE_STYLE}</style></head><body>
<h1>Request {escape(request_id)}</h1>
<p>{len(records)} events in {last_ms - zero_ms} ms, times by the broker's clock. Chunks are drawn, and not listed.</p>
<div class="wide">{_drawing(records, zero_ms, max(1, last_ms - zero_ms))}</div>
<h2>What the client saw, at <span id="when"></span></h2>
<input type="range" id="at" min="0" max="{shown_ms}" value="{shown_ms}" aria-label="milliseconds since the first event">
<div id="text"></div>
<h2>Receipts</h2>{_receipts(checks, len(ops)) if not sealed else _SEALED.format(sealed)}
{_latency(latency) if not sealed else ""}
<h2>Events</h2><table><tr><th>ms</th><th>event</th></tr>{rows}</table>
<script type="application/json" id="ops">{data}</script><script>{_SCRIPT}</script></body></html>
"""


def _drawing(records: Sequence[Received], zero_ms: int, span_ms: int) -> str:
    lanes = [lane for lane in LANES if any(_lane(record) == lane for record in records)]
    height = _ROW * len(lanes) + 30
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="events by writer and time">',
        *(_lane_line(lane, number) for number, lane in enumerate(lanes)),
    ]
    every = max(1, len(records) // MAX_MARKS)
    for number, record in enumerate(records):
        if isinstance(record.event, Chunk) and number % every:
            continue
        x = _LEFT + (record.timestamp_ms - zero_ms) / span_ms * (_WIDTH - _LEFT - 10)
        y = _ROW * lanes.index(_lane(record)) + _ROW // 2
        colour = "var(--bad)" if isinstance(record.event, Recall) else "var(--mark)"
        radius = 2 if isinstance(record.event, Chunk) else 5
        title = escape(f"+{record.timestamp_ms - zero_ms} ms {type(record.event).__name__}: {_about(record)}")
        parts.append(f'<circle cx="{x:.1f}" cy="{y}" r="{radius}" fill="{colour}"><title>{title}</title></circle>')
    for part in range(5):
        x = _LEFT + part / 4 * (_WIDTH - _LEFT - 10)
        anchor = "end" if part == 4 else "middle"
        parts.append(f'<text x="{x:.0f}" y="{height - 8}" text-anchor="{anchor}">{span_ms * part // 4} ms</text>')
    return "".join([*parts, "</svg>"])


def _lane_line(lane: str, number: int) -> str:
    y = _ROW * number + _ROW // 2
    line = f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{y}" y2="{y}" stroke="var(--line)"/>'
    return f'{line}<text x="0" y="{y + 4}">{lane}</text>'


def _lane(record: Received) -> str:
    source = str(getattr(record.event, "source", "")).partition("/")[0]
    return source if source in LANES else "other"


def _row(record: Received, zero_ms: int) -> str:
    kind = type(record.event).__name__
    marked = ' class="bad"' if isinstance(record.event, Recall) else ""
    when = f"{record.timestamp_ms - zero_ms:+d}"
    return f"<tr{marked}><td>{when}</td><td><b>{kind}</b> {escape(_about(record))}</td></tr>\n"


def _about(record: Received) -> str:
    return printable(describe_event(record.event)).replace("\n", " ")


def _receipts(checks: Sequence[ReceiptCheck], ops: int) -> str:
    if not checks:
        return "<p>No connection has left a receipt.</p>"
    pairs = zip(checks, receipts(checks, ops), strict=True)
    lines = (f'<li class="{"good" if check.matches else "bad"}">{escape(line)}</li>' for check, line in pairs)
    return f"<ul>{''.join(lines)}</ul>"


def _latency(latency: Latency | None) -> str:
    if latency is None:
        return "<p>The request is not closed: no account of its time.</p>"
    rows = "".join(
        f"<tr><td>{ms:.1f}</td><td><b>{escape(name)}</b> <small>{escape(WAITS_FOR[name])}</small></td></tr>"
        for name, ms in latency.parts
    )
    head = f"<h2>Where its {latency.total_ms:.1f} ms went</h2>"
    return f"{head}<table><tr><th>ms</th><th>waited for</th></tr>{rows}</table>"
