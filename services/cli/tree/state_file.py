"""The running tree's addresses: a small file that ``railbus up`` writes and the other commands read.

Beside it is ``scrape.json``, the same addresses as Prometheus' file-based service discovery reads them.
"""

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO
from urllib.parse import urlsplit

from services.runtime.errors import UserError

STATE_DIR_VARIABLE: Final = "RAILBUS_STATE_DIR"
"""Folder in which ``railbus up`` keeps ``up.json`` and the embedded broker's log; ``.railbus`` when it is not set."""

DEFAULT_STATE_DIR: Final = ".railbus"

DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTree:
    """A running tree.

    Attributes:
        pid: Process id of the supervisor.
        url: Address of the first edge.
        kafka: The brokers, ``HOST:PORT``, several separated by commas.
        partitions: Partitions of the request topics.
        redis_url: Address of Redis; None when there is none.
        pids: Process id of each process, by its name.
        health: Address of each one's ``/healthz``, ``/readyz`` and ``/metrics``.
        edges: Addresses of all edges.
        batch_dir: Folder of the files of batch jobs; None where no batch service runs.
    """

    pid: int
    url: str
    kafka: str
    partitions: int
    redis_url: str | None = None
    pids: dict[str, int] = field(default_factory=dict)
    health: dict[str, str] = field(default_factory=dict)
    edges: list[str] = field(default_factory=list)
    batch_dir: str | None = None


def state_dir() -> Path:
    """Return the folder of the state file and the embedded broker's log: ``RAILBUS_STATE_DIR``, else ``.railbus``."""
    return Path(os.environ.get(STATE_DIR_VARIABLE) or DEFAULT_STATE_DIR)


@contextmanager
def tree_lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock while the block runs; the kernel releases it however the process ends.

    Raises:
        UserError: Another tree runs here, or the folder cannot be written.
    """
    with _open_lock(folder) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"a tree is running already ({_described(folder)}): stop it first, or give this one a folder of its own"
                f" with {STATE_DIR_VARIABLE}"
            ) from None
        try:
            yield
        finally:
            _state_file(folder).unlink(missing_ok=True)
            _scrape_file(folder).unlink(missing_ok=True)


def write_state(tree: RunningTree, folder: Path) -> None:
    """Write both files, each whole or not at all.

    Raises:
        UserError: The folder cannot be written, or its disk is full.
    """
    for path, content in ((_scrape_file(folder), scrape_targets(tree)), (_state_file(folder), asdict(tree))):
        fresh = path.with_name(f"{path.name}.new")
        try:
            fresh.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            fresh.replace(path)
        except OSError as error:
            raise _unwritable(folder, error) from None


def scrape_targets(tree: RunningTree) -> list[dict[str, Any]]:
    """Return where ``/metrics`` of each process is, as ``file_sd_configs`` of Prometheus reads it."""
    edges = {f"edge-{number}" if number > 1 else "edge": url for number, url in enumerate(tree.edges, start=1)}
    return [
        {"targets": [urlsplit(url).netloc], "labels": {"service": name.split("-")[0], "process": name}}
        for name, url in {**edges, **tree.health}.items()
    ]


def _open_lock(folder: Path) -> TextIO:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return _lock_file(folder).open("w")
    except OSError as error:
        raise _unwritable(folder, error) from None


def _unwritable(folder: Path, error: OSError) -> UserError:
    remedy = "free some space" if error.errno in DISK_FULL else "make it writable"
    return UserError(
        f"the state folder {folder} cannot be written ({error.strerror}): {remedy}, or name another folder with"
        f" {STATE_DIR_VARIABLE}"
    )


def find_running_tree(folder: Path) -> RunningTree | None:
    """Return the running tree, or None; the file of a killed supervisor does not count."""
    try:
        with _lock_file(folder).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
    except BlockingIOError:
        pass
    except OSError:
        return None
    return _read(folder)


def _read(folder: Path) -> RunningTree | None:
    try:
        return RunningTree(**json.loads(_state_file(folder).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _described(folder: Path) -> str:
    found = _read(folder)
    return "it is starting" if found is None else f"process {found.pid} at {found.url}"


def _lock_file(folder: Path) -> Path:
    return folder / "up.lock"


def _state_file(folder: Path) -> Path:
    return folder / "up.json"


def _scrape_file(folder: Path) -> Path:
    return folder / "scrape.json"
