"""Write files atomically, and detect changes of files."""

import os
import secrets
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def write_whole(path: Path, content: bytes | bytearray) -> None:
    """Replace a file atomically. After a loss of power, the file has either its old or its new content."""
    with whole_file(path) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file whose content replaces that of ``path`` atomically when the block ends without an error."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with fresh.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_folder(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Sync a folder to the disk, so that created and renamed files survive a loss of power."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


class SettledChange:
    """Detects changes of files, but only after the files have stopped changing.

    Args:
        seen: State of the files at the start, such as their modification times.

    Attributes:
        settled: Whether the last two calls of ``poll`` got the same state.
    """

    def __init__(self, seen: Hashable) -> None:
        self._seen = seen
        self.settled = True

    def poll(self, seen: Hashable) -> bool:
        """Return whether a change has just become complete. So the result is True once for each change.

        A change is complete when ``seen``, the state of the files, is the same in two calls in a row.
        """
        if seen != self._seen:
            self._seen, self.settled = seen, False
            return False
        was_settled, self.settled = self.settled, True
        return not was_settled
