"""``python -m schemas`` writes the JSON Schemas and the AsyncAPI document; ``--check`` only says what has drifted."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from schemas.asyncapi import document
from schemas.json_schemas import event_schema, file_name
from schemas.wire import KINDS

GENERATED: Final = Path(__file__).parent / "generated"


def documents() -> dict[str, str]:
    """File name to text of everything that is generated."""
    files = {file_name(name): event_schema(kind) for name, kind in KINDS.items()}
    return {name: _text(value) for name, value in (files | {"asyncapi.json": document()}).items()}


def drift(folder: Path) -> list[str]:
    """Names of the files that are missing, superfluous or not as they would be written now."""
    wanted = documents()
    found = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.json")}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def write(folder: Path) -> None:
    """Makes the folder hold what is generated and no other JSON file."""
    folder.mkdir(exist_ok=True)
    wanted = documents()
    for path in folder.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


def main() -> int:
    """Exit code 1 when ``--check`` found drift."""
    parser = argparse.ArgumentParser(prog="python -m schemas", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is not as generated")
    parser.add_argument("--folder", type=Path, default=GENERATED, help="where the documents are (default: %(default)s)")
    args = parser.parse_args()
    if not args.check:
        write(args.folder)
        return 0
    drifted = drift(args.folder)
    if drifted:
        sys.stderr.write(f"not as generated: {', '.join(drifted)}; run `make schemas` and commit the result\n")
    return 1 if drifted else 0


def _text(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main())
