"""Create the HTML page of ``railbus audit rejudge``. Pure functions."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from services.cli.audit.page import PAGE_STYLE

MAX_ROWS: Final = 1_000
"""Maximum number of rows in each table of differences. The bars also count the differences that have no row."""

CHANGES: Final = {"appears": "var(--bad)", "moves": "var(--moved)", "disappears": "var(--mark)"}
"""How recalls under another policy can differ from the recorded ones, and the colour of each difference."""

_STYLE: Final = """
:root{--moved:#c98a1b}
.tiles{display:flex;flex-wrap:wrap;gap:.4rem 2.2rem;margin:.6rem 0}
.tiles div{min-width:7rem}.tiles b{display:block;font-size:1.3rem;font-weight:600;font-variant-numeric:tabular-nums}
.bars>div{display:grid;grid-template-columns:1fr auto;margin:.5rem 0}
.bars>div>div{grid-column:1/3;display:flex;height:.9rem}
.bars i{height:100%}.key i{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin:0 .3em 0 .9em}
td:first-child,th:first-child{text-align:left;min-width:9rem;white-space:normal;overflow-wrap:anywhere}
td:last-child{min-width:6rem}
td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}.wide td{padding-right:1rem}
"""


def rejudge_page(told: Mapping[str, Any]) -> str:
    """Return the HTML page. ``told`` is the object that ``railbus audit rejudge --json`` prints."""
    policy, prompts = told["policy"], told["prompts"]
    title = f"Old traffic under policy {policy['name']} {policy['version']}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>{escape(title)}</title><style>{PAGE_STYLE}{_STYLE}</style></head><body>
<h1>{escape(title)}</h1>
<p>It was recorded under {_versions(told["recorded_versions"])}.</p>
<h2>Answers</h2>{_answers(told)}{_bars(told["differences"])}
<h2>Rules under this policy</h2>{_rules(told["rules"], labelled=bool(told["labels"]))}{_labels(told)}
<h2>Recalls that differ</h2>{_recalls(told["differences"])}
<h2>Prompts</h2>{_prompts(prompts)}
<h2>Verdicts that differ</h2>{_verdicts(prompts["differences"])}
</body></html>
"""


def _versions(recorded: Mapping[str, int] | Iterable[str]) -> str:
    names = sorted(recorded)
    return f"policy {', '.join(escape(name) for name in names)}" if names else "no policy"


def _tiles(tiles: Iterable[tuple[str, int]]) -> str:
    cells = "".join(f"<div><b>{count:,}</b>{escape(name)}</div>" for name, count in tiles)
    return f'<div class="tiles">{cells}</div>'


def _answers(told: Mapping[str, Any]) -> str:
    changes = Counter(each["change"] for each in told["differences"])
    tiles = [("requests", told["requests"]), ("chunks", told["chunks"]), ("recalls the same", told["same"])]
    tiles += [(f"recalls {change.removesuffix('s')}", changes[change]) for change in CHANGES]
    if told["unchecked"]:
        tiles.append(("because a check had not answered", told["unchecked"]))
    return _tiles(tiles)


def _bars(differences: Sequence[Mapping[str, Any]]) -> str:
    counts: dict[str, Counter[str]] = {}
    for each in differences:
        counts.setdefault((each["after"] or each["before"])["rule"], Counter())[each["change"]] += 1
    if not counts:
        return '<p class="good">No recall is different.</p>'
    most = max(count.total() for count in counts.values())
    rows = []
    for rule, count in sorted(counts.items(), key=lambda item: (-item[1].total(), item[0])):
        bars = "".join(
            f'<i style="width:{count[change] / most:.2%};background:{colour}" title="{count[change]} {change}"></i>'
            for change, colour in CHANGES.items()
            if count[change]
        )
        label = f"{escape(rule)}: {', '.join(f'{count[change]} {change}' for change in CHANGES if count[change])}"
        head = f"<span>{escape(rule)}</span><span>{count.total():,}</span>"
        rows.append(f'<div role="img" aria-label="{label}">{head}<div>{bars}</div></div>')
    key = "".join(f'<i style="background:{colour}"></i>{change}' for change, colour in CHANGES.items())
    return f'<div class="bars">{"".join(rows)}</div><p class="key">{key}</p>'


def _rules(rules: Sequence[Mapping[str, Any]], *, labelled: bool) -> str:
    if not rules:
        return "<p>No rule recalls anything.</p>"
    heads = ["recalls", "exposed p50", "exposed most", "removed"] + (
        ["precision", "wrongly removed"] if labelled else []
    )
    rows = []
    for row in rules:
        cells = [row["recalls"], row["exposed_chars_p50"], row["exposed_chars_max"], row["removed_chars"]]
        if labelled:
            cells += [_percent(row["precision"]), row["wrong_chars"]]
        rows.append([f"{row['rule']} ({row['category']})", *cells])
    note = "Exposed: characters between the begin of what a rule found and the end of what was there by then."
    return _table(["rule", *heads], rows) + f"<p><small>{note} Removed: characters that it took away.</small></p>"


def _labels(told: Mapping[str, Any]) -> str:
    if not told["labels"]:
        return ""
    rows = [
        [category, one["labels"], one["found"], _percent(one["recall"])] for category, one in told["labels"].items()
    ]
    unknown = told["labels_of_unknown_requests"]
    note = f"<p>{unknown} labels are of requests that were not judged.</p>" if unknown else ""
    return "<h2>What people found</h2>" + _table(["category", "labels", "found", "recall"], rows) + note


def _recalls(differences: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [each["request_id"], each["attempt"], each["change"], _span(each["before"]), _span(each["after"])]
        for each in differences[:MAX_ROWS]
    ]
    return _listed(["request", "attempt", "change", "recorded", "under this policy"], rows, len(differences))


def _prompts(prompts: Mapping[str, Any]) -> str:
    left_out = prompts["left_out"]
    tiles = [("prompts", prompts["requests"]), ("verdicts the same", prompts["same"])]
    tiles.append(("verdicts differ", len(prompts["differences"])))
    if prompts["unanswered"]:
        tiles.append(("because a rail had not answered", prompts["unanswered"]))
    if left_out["verdicts"]:
        tiles.append(("of rails that were not asked", left_out["verdicts"]))
    lines = [f"Rail {rail} was not asked: {why}." for rail, why in left_out["rails"].items()]
    lines += [f"Rail {rail} refuses {count:,} prompts." for rail, count in prompts["blocked"].items()]
    return _tiles(tiles) + "".join(f"<p>{escape(line)}</p>" for line in lines)


def _verdicts(differences: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [each["request_id"], f"{each['change']} now", _ruling(each["before"]), _ruling(each["after"])]
        for each in differences[:MAX_ROWS]
    ]
    return _listed(["request", "change", "recorded", "under this policy"], rows, len(differences))


def _listed(heads: Sequence[str], rows: Sequence[Sequence[Any]], count: int) -> str:
    if not count:
        return '<p class="good">None.</p>'
    more = f"<p>And {count - len(rows):,} more: <code>--json</code> has all.</p>" if count > len(rows) else ""
    return _table(heads, rows) + more


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def cell(value: Any, tag: str, *, number: bool) -> str:
        kind = ' class="n"' if number else ""
        return f"<{tag}{kind}>{escape(_text(value))}</{tag}>"

    numeric = [bool(rows) and all(isinstance(row[at], int | float | None) for row in rows) for at in range(len(heads))]
    head = "".join(cell(name, "th", number=numeric[at]) for at, name in enumerate(heads))
    body = "".join(
        f"<tr>{''.join(cell(value, 'td', number=numeric[at]) for at, value in enumerate(row))}</tr>\n" for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"


def _span(recall: Mapping[str, Any] | None) -> str | None:
    if recall is None:
        return None
    return f"{recall['rule']} ({recall['category']}) {recall['start']} to {recall['end']}, {recall['action']}"


def _ruling(ruling: Mapping[str, Any]) -> str:
    details = "; ".join(f"{rail}: {detail}" for rail, detail in ruling["rails"].items())
    return f"{ruling['decision']} ({details})" if details else str(ruling["decision"])
