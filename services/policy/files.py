"""A policy's files, read once into memory, and the version that is their content's hash."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from services.policy.errors import BrokenPolicy, Fault

DEFAULT_POLICY: Final = Path(__file__).resolve().parents[2] / "policies" / "default"
"""The policy that is used when none is named: the one beside the code, wherever a process was started."""

MAX_FILES: Final = 500
MAX_FILE_BYTES: Final = 4_000_000

Files = Mapping[str, bytes]
"""Relative POSIX path -> content, in sorted order."""


def read_files(root: Path) -> Files:
    """Every file under the policy's folder. What is loaded and what is hashed are the same bytes.

    Raises:
        BrokenPolicy: No such folder, an unreadable or too large file, or too many files.
    """
    if not root.is_dir():
        raise BrokenPolicy([Fault(".", 0, f"{root} is no folder; name one that holds a policy.toml")])
    names = sorted(_names(root))
    if len(names) > MAX_FILES:
        raise BrokenPolicy([Fault(".", 0, f"{len(names)} files; the limit is {MAX_FILES}")])
    return {name: _read(root, name) for name in names}


def version_of(files: Files) -> str:
    """SHA-256 over sorted paths and contents, each with its length: the same on every machine.

    The first 20 hexadecimal digits (80 bits) are kept, since it stands in every verdict and recall.
    """
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        path = name.encode()
        digest.update(b"%d:%b%d:" % (len(path), path, len(content)))
        digest.update(content)
    return digest.hexdigest()[:20]


def fingerprint(root: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, modification times (ns) and sizes: changes whenever the files do, without reading them."""
    found = []
    for name in sorted(_names(root)):
        try:
            status = (root / name).stat()
        except OSError:
            continue  # being replaced right now: the next look sees it
        found.append((name, status.st_mtime_ns, status.st_size))
    return tuple(found)


def _names(root: Path) -> Iterator[str]:
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if not _is_scratch(name)]
        for name in names:
            if not _is_scratch(name):
                yield (Path(folder) / name).relative_to(root).as_posix()


def _is_scratch(name: str) -> bool:
    """Editors' and version control's own files are no part of a policy."""
    return name.startswith((".", "__pycache__")) or name.endswith(("~", ".swp", ".tmp"))


def _read(root: Path, name: str) -> bytes:
    try:
        content = (root / name).read_bytes()
    except OSError as error:
        raise BrokenPolicy([Fault(name, 0, f"cannot be read: {error.strerror}")]) from None
    if len(content) > MAX_FILE_BYTES:
        raise BrokenPolicy([Fault(name, 0, f"{len(content)} bytes; the limit is {MAX_FILE_BYTES}")])
    return content
