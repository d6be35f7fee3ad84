"""Read a policy's files, and compute the policy's version from their content."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from services.policy.errors import BrokenPolicy, PolicyFault
from services.runtime.classes.policy_deadlines import DEFAULT_POLICY
from services.runtime.settings import is_utf8

__all__ = ["DEFAULT_POLICY", "Files", "fingerprint", "read_files", "version_of"]

MAX_FILES: Final = 500
MAX_FILE_BYTES: Final = 4_000_000

Files = Mapping[str, bytes]
"""The content of files by relative POSIX path, sorted."""


def read_files(root: Path) -> Files:
    """Read every file under the policy's folder.

    Raises:
        BrokenPolicy: The folder does not exist, a folder or file is unreadable, a file is too large, a file's name is
            not UTF-8, or there are too many files.
    """
    if not root.is_dir():
        raise BrokenPolicy([PolicyFault(".", 0, f"{root} is not a folder; name one with a policy.toml")])
    unread: list[OSError] = []
    names = sorted(_names(root, unread.append))
    if unread:  # without this, a policy whose folder of patterns is unreadable would have no patterns
        faults = [_unreadable(Path(one.filename).relative_to(root).as_posix(), one) for one in unread]
        forbidden = any(isinstance(one, PermissionError) for one in unread)
        raise BrokenPolicy(faults, temporary=True, forbidden=forbidden)
    if len(names) > MAX_FILES:
        raise BrokenPolicy([PolicyFault(".", 0, f"{len(names)} files; the limit is {MAX_FILES}")])
    for name in names:
        if not is_utf8(name):
            raise BrokenPolicy([PolicyFault(ascii(name), 0, "the file's name is not UTF-8; rename the file")])
    return {name: _read(root, name) for name in names}


def version_of(files: Files) -> str:
    """Return the policy's version: 20 hexadecimal digits of a SHA-256 hash of all paths and contents."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        path = name.encode()
        digest.update(b"%d:%b%d:" % (len(path), path, len(content)))
        digest.update(content)
    return digest.hexdigest()[:20]


def fingerprint(root: Path) -> tuple[tuple[str, int, int], ...]:
    """Return the path, the modification time in nanoseconds, and the size of each file under ``root``."""
    found = []
    for name in sorted(_names(root)):
        try:
            status = (root / name).stat()
        except OSError:
            continue  # being replaced: the next poll sees it
        found.append((name, status.st_mtime_ns, status.st_size))
    return tuple(found)


def _names(root: Path, on_error: Callable[[OSError], None] | None = None) -> Iterator[str]:
    above: dict[Path, frozenset[Path]] = {}  # by folder, the real paths of the folder and of those around it
    for folder, inner, names in os.walk(root, onerror=on_error, followlinks=True):  # Kubernetes mounts folders as links
        around, real = above.get(Path(folder).parent, frozenset[Path]()), Path(folder).resolve()
        if real in around:  # a link to a folder around it
            inner.clear()
            continue
        above[Path(folder)] = around | {real}
        inner[:] = [name for name in inner if not _is_scratch(name)]
        for name in names:
            if not _is_scratch(name):
                yield (Path(folder) / name).relative_to(root).as_posix()


def _is_scratch(name: str) -> bool:
    return name.startswith((".", "__pycache__", "lost+found")) or name.endswith(("~", ".swp", ".tmp"))


def _read(root: Path, name: str) -> bytes:
    try:
        content = (root / name).read_bytes()
    except OSError as error:
        forbidden = isinstance(error, PermissionError)
        raise BrokenPolicy([_unreadable(name, error)], temporary=True, forbidden=forbidden) from None
    if len(content) > MAX_FILE_BYTES:
        raise BrokenPolicy([PolicyFault(name, 0, f"{len(content)} bytes; the limit is {MAX_FILE_BYTES}")])
    return content


def _unreadable(name: str, error: OSError) -> PolicyFault:
    return PolicyFault(name, 0, f"cannot be read: {error.strerror}")
