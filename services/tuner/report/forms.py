"""Write a report as Markdown or HTML, and the settings as an environment file."""

import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from services.runtime.settings import without_secrets
from services.tuner.report.document import Section

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--rule:#d0d7de;--kept:#1a7f37;--other:#57606a;--margin:#bc4c00}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--rule:#30363d;--kept:#3fb950;--other:#8b949e}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper)}
body{max-width:60rem;margin:0 auto;padding:1rem}
h1{font-size:1.4rem}h2{font-size:1.15rem;border-bottom:1px solid var(--rule)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem;min-width:100%}
th,td{text-align:left;vertical-align:top;padding:.3rem .5rem;border-bottom:1px solid var(--rule)}
svg{width:100%;height:auto;font:13px system-ui,sans-serif}svg text{fill:var(--ink)}svg .title{font-weight:600}
.axis{stroke:var(--rule)}.margin{stroke:var(--margin);stroke-dasharray:4 4}
.kept{stroke:var(--kept);stroke-width:3}circle.kept{fill:var(--kept)}polyline.kept{fill:none}
.other{stroke:var(--other);stroke-width:2}circle.other{fill:var(--paper)}
"""


def markdown(title: str, sections: Sequence[Section]) -> str:
    parts = [f"# {title}\n"]
    for each in sections:
        parts.append(f"\n## {each.title}\n\n")
        parts += [f"{sentence}\n\n" for sentence in each.sentences]
        if each.header:
            parts.append(_row(each.header) + _row(["---"] * len(each.header)))
            parts += [_row(row) for row in each.rows]
    return "".join(parts)


def page(title: str, sections: Sequence[Section]) -> str:
    """Return the report as one HTML page that loads no other files."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>",
    ]
    for each in sections:
        parts.append(f"<h2>{escape(each.title)}</h2>")
        parts += [f"<p>{escape(sentence)}</p>" for sentence in each.sentences]
        parts.append(each.drawing)
        if each.header:
            head = "".join(f"<th>{escape(cell)}</th>" for cell in each.header)
            rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in each.rows)
            parts.append(f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>')
    return "".join([*parts, "</body></html>\n"])


def env_file(settings: Mapping[str, str], reasons: Mapping[str, str], command: str) -> str:
    """Return the settings as an environment file, with ``reasons`` as comments.

    Empty values, secrets, and URLs with a login or a query are left out.
    """
    engine = settings.get("RAILBUS_ENGINE", "")
    lines = [
        f"# Found by: {' '.join(command.splitlines())}",  # a second line would be a command of the shell that reads it
        f"# Use: set -a; . ./railbus.env; set +a; railbus up --engine {engine}",
    ]
    printable = without_secrets(settings)
    for name, value in settings.items():
        if value != printable[name]:
            lines.append(f"# {name} is a secret: set it where the engine starts")
        elif value:
            lines += [f"# {reasons[name]}"] if name in reasons else []
            lines.append(f"{name}={shlex.quote(value)}")
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"
