"""Keep the results of finished runs in a folder, so that an interrupted benchmark can continue where it stopped."""

import json
from pathlib import Path
from typing import Any


class State:
    """The results of the finished runs, in one JSON file for each run. A run that fails has no file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def has(self, run: str) -> bool:
        return self._path(run).exists()

    def keep(self, run: str, lines: list[dict[str, Any]], wall_s: float) -> None:
        fresh = self._path(run).with_suffix(".new")
        fresh.write_text(json.dumps({"wall_s": round(wall_s, 1), "lines": lines}, indent=1), encoding="utf-8")
        fresh.replace(self._path(run))

    def lines(self) -> list[dict[str, Any]]:
        """Return the JSON objects of all finished runs. The field ``run`` of an object is the name of its run."""
        found = []
        for path in sorted(self.folder.glob("*.json")):
            kept = json.loads(path.read_text(encoding="utf-8"))
            found += [{**line, "run": path.stem} for line in kept["lines"]]
        return found

    def longest_s(self) -> float | None:
        """Return the seconds that the longest finished run of an arm took; None if no run of an arm has finished."""
        took = [
            json.loads(path.read_text(encoding="utf-8"))["wall_s"]
            for path in self.folder.glob("*.json")
            if path.stem != "ceilings"
        ]
        return max(took, default=None)

    def _path(self, run: str) -> Path:
        return self.folder / f"{run}.json"
