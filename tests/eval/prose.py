"""``python -m tests.eval.prose --seed 1``: draw docstrings and sentences of the documentation for a stranger to read.

The stranger knows Kafka but not Railbus. For each item, the stranger says whether it needed a second reading.
"""

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "ARCHITECTURE.md", "docs/**/*.md", "policies/**/*.md", "infra/**/*.md", "schemas/*.md")
PRODUCT, TESTS = ("services", "schemas", "infra"), "tests"
LEAST_WORDS = 5
"""Shorter sentences, such as labels of lists, are not drawn."""

_ITEM = re.compile(r"\s*(?:[-*]|\d+\.) ")


def docstrings(*folders: str) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each docstring in these folders."""
    for path in sorted(path for folder in folders for path in ROOT.glob(f"{folder}/**/*.py")):
        yield from _docstrings(ast.parse(path.read_text("utf-8")), "", str(path.relative_to(ROOT)))


def _docstrings(node: ast.AST, name: str, file: str) -> Iterator[tuple[str, str]]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(node, kinds) and (text := ast.get_docstring(node)):
        signature = f"({ast.unparse(node.args)})" if isinstance(node, kinds[2:]) else ""
        yield f"{file} {name}{signature}".strip(), text
    for child in ast.iter_child_nodes(node):
        if isinstance(child, kinds):
            yield from _docstrings(child, f"{name}.{child.name}".lstrip("."), file)


def sentences() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each sentence of the pages.

    The place is the file and the paragraph around the sentence. For a list item, it is the item, and the heading or
    paragraph before the list. Sentences in tables and code are left out.
    """
    for path in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        text, lead = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL), ""
        for block in re.split(r"\n\s*\n", text):
            if block.lstrip().startswith("#"):
                lead = " ".join(block.split())
            if block.lstrip().startswith(("#", "|", "<", "!", "---")) or block.startswith("    "):
                continue
            for part in re.split(rf"\n(?={_ITEM.pattern})", block):
                flat = " ".join(part.split())
                context = f"{lead} {flat}" if _ITEM.match(part) else flat
                lead = lead if _ITEM.match(part) else flat
                for sentence in re.split(r"(?<=[.:?!])\s+(?=[A-Z`*\[])", flat):
                    if len(sentence.split()) >= LEAST_WORDS:
                        yield f"{path.relative_to(ROOT)}, in: {context[-900:]}", sentence


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.eval.prose", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument(
        "--each",
        type=int,
        default=30,
        help="number of docstrings to draw, and number of sentences (default: %(default)s)",
    )
    parser.add_argument("--tests", action="store_true", help="draw docstrings of tests and benchmarks, too")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    texts = list(docstrings(*PRODUCT, *([TESTS] if options.tests else [])))
    drawn = [*dice.sample(texts, options.each), *dice.sample(list(sentences()), options.each)]
    dice.shuffle(drawn)
    for number, (place, text) in enumerate(drawn, 1):
        print(f"--- {number}  [{place}]\n{text}\n")


if __name__ == "__main__":
    main()
