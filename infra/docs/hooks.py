"""MkDocs hook that replaces each marker ``<!-- generated: NAME -->`` with text that is generated from the code."""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # MkDocs loads a hook by its path

from infra.docs import acls, commands, errors, events, http, metrics, ops, policy, settings

ROOT: Final = Path(__file__).resolve().parents[2]


def _program(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        text = text.partition("```python\n")[2].partition("```")[0]
    return f"```python\n{text}```\n"


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "access": acls.body,
    "access lists": acls.lists,
    "audit program": lambda: _program(ROOT / "docs" / "how-to" / "audit.py"),
    "commands": commands.body,
    "endpoints": lambda: http.endpoints("edge"),
    "error codes": errors.body,
    "events": events.body,
    "kafka program": lambda: _program(ROOT / "schemas" / "README.md"),
    "meanings": events.meanings,
    "messages": http.messages,
    "metrics": metrics.body,
    "ops": ops.body,
    "parameters": http.parameters,
    "policy": policy.body,
    "request body": http.request_body,
    "service endpoints": lambda: http.endpoints("runtime"),
    "settings": settings.body,
    "topics": events.topics,
}

MARKER: Final = re.compile(r"<!-- generated: ([a-z ]+) -->")


def filled(markdown: str) -> str:
    return MARKER.sub(lambda found: PARTS[found[1]](), markdown)


def on_page_markdown(markdown: str, **_: Any) -> str:
    return filled(markdown)
