"""The progress of a download, for the person who waits for it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final


class Progress:
    """A bar on a terminal that redraws itself; anywhere else a line when it begins and one when it ends.

    Args:
        what: Name of the work.
        total: Its bytes.
        stream: Where to write.
        clock: Seconds.
    """

    WIDTH: Final = 30

    def __init__(self, what: str, total: int, stream: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._total = total
        self._stream = stream
        self._live = stream.isatty()
        self._clock = clock
        self._began = clock()

    def begin(self) -> None:
        """Start counting the time."""
        self._began = self._clock()
        self._write(f"{self._what} ({self._total / 1e6:.0f} MB, once)", end="" if self._live else "\n")

    def show(self, done: int) -> None:
        """Draw so many bytes."""
        if self._live:
            share = min(1.0, done / self._total)
            filled = round(share * self.WIDTH)
            bar = "#" * filled + "." * (self.WIDTH - filled)
            self._write(f"{self._what} [{bar}] {share:4.0%} of {self._total / 1e6:.0f} MB", end="")

    def end(self, path: Path) -> None:
        """Say where the file is and how long it took."""
        self._write(f"{self._what}: done in {self._clock() - self._began:.1f} s, kept in {path.parent}", end="\n")

    def say(self, text: str) -> None:
        """Write a line of its own."""
        self._write(text, end="\n")

    def abort(self) -> None:
        """End the line of a drawn bar, so that the next text begins a new line."""
        if self._live:
            self._stream.write("\n")

    def _write(self, text: str, *, end: str) -> None:
        self._stream.write(f"\r\x1b[K{text}{end}" if self._live else f"{text}{end}")
        self._stream.flush()
