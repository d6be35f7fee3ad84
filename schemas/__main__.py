"""Generate the JSON Schemas, the AsyncAPI document and the README's tables from ``schemas.registry``.

With ``--check``, write nothing and report the files that are out of date.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from schemas.documents.asyncapi import document
from schemas.documents.json_schemas import event_schema, file_name
from schemas.documents.tables import with_tables
from schemas.registry import KINDS

GENERATED: Final = Path(__file__).parent / "generated"
README: Final = Path(__file__).parent / "README.md"


def documents() -> dict[str, str]:
    files = {file_name(name): event_schema(kind) for name, kind in KINDS.items()}
    return {name: _text(value) for name, value in (files | {"asyncapi.json": document()}).items()}


def drift(folder: Path, readme: Path = README) -> list[str]:
    """Return the names of the files that are missing, superfluous or out of date."""
    wanted = documents()
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    text = readme.read_text(encoding="utf-8")
    tables = [] if with_tables(text) == text else [readme.name]
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)) + tables


def write(folder: Path, readme: Path = README) -> None:
    folder.mkdir(exist_ok=True)
    wanted = documents()
    for path in folder.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")
    readme.write_text(with_tables(readme.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m schemas", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is out of date")
    parser.add_argument("--folder", type=Path, default=GENERATED, help="where the documents are (default: %(default)s)")
    parser.add_argument("--readme", type=Path, default=README, help="where the tables are (default: %(default)s)")
    args = parser.parse_args()
    if not args.check:
        write(args.folder, args.readme)
        return 0
    drifted = drift(args.folder, args.readme)
    if drifted:
        sys.stderr.write(f"out of date: {', '.join(drifted)}; run `make schemas` and commit the result\n")
    return 1 if drifted else 0


def _text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main())
