"""Write Markdown tables."""

from collections.abc import Iterable, Sequence


def cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n" + "".join(f"| {' | '.join(map(cell, line))} |\n" for line in lines) + "\n"


def code(text: object) -> str:
    return f"`{str(text).replace('`', chr(39))}`"


def codes(texts: Iterable[object]) -> str:
    return ", ".join(map(code, texts))
