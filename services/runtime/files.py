"""Write files atomically, and notice edits of files."""

import os
import secrets
from collections.abc import Hashable
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file atomically. Even after a loss of power the file has either its old or its new content."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with fresh.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_folder(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries to disk. Otherwise a loss of power may undo that a file was created or renamed."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


class SettledChange:
    """Reports a change of files once they were the same in two successive polls, so that no unfinished edit is read.

    Args:
        seen: Fingerprint of the files at the start.
    """

    def __init__(self, seen: Hashable) -> None:
        self._seen = seen
        self._settled = True

    def poll(self, seen: Hashable) -> bool:
        """Return true once per change of the files, at the second successive poll with the same fingerprint."""
        if seen != self._seen:
            self._seen, self._settled = seen, False
            return False
        was_settled, self._settled = self._settled, True
        return not was_settled
