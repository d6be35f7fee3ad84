"""Markdown tables."""

from collections.abc import Iterable, Sequence


def cell(text: str) -> str:
    """Return text that may stand in a table's cell."""
    return " ".join(str(text).split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table, an empty line before and behind it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n" + "".join(f"| {' | '.join(map(cell, line))} |\n" for line in lines) + "\n"


def code(text: object) -> str:
    """Return text as code; a backtick in it would end it."""
    return f"`{str(text).replace('`', chr(39))}`"


def codes(texts: Iterable[object]) -> str:
    """Return several, separated by commas."""
    return ", ".join(map(code, texts))
