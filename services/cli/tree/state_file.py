"""Read and write the state files of ``railbus up``, which have the addresses of its processes.

Other subcommands read ``up.json``. Prometheus reads ``scrape.json``.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO
from urllib.parse import urlsplit

from services.runtime.errors import DISK_FULL, UserError

STATE_DIR_VARIABLE: Final = "RAILBUS_STATE_DIR"
"""Variable with the folder for ``up.json`` and the embedded broker's log, called the state folder."""

DEFAULT_STATE_DIR: Final = ".railbus"

LOCK_TRIES: Final = 10
LOCK_PAUSE_S: Final = 0.01
"""Time between two tries to lock the state folder. Other commands hold the lock for a moment, to see if it is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTree:
    """Processes and addresses of a running ``railbus up``.

    Attributes:
        pid: Process id of the supervisor.
        url: Address of the first edge.
        kafka: The brokers, ``HOST:PORT``, separated by commas.
        partitions: Number of partitions of each topic that is partitioned by request id.
        redis_url: Address of Redis; None if there is none.
        health: Addresses of the servers for ``/healthz``, ``/readyz`` and ``/metrics``, by process name.
        batch_dir: Folder of the files of batch jobs; None if no batch service runs.
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
    return Path(os.environ.get(STATE_DIR_VARIABLE) or DEFAULT_STATE_DIR)


@contextmanager
def tree_lock(folder: Path) -> Iterator[None]:
    """Lock the state folder while the block runs. Remove the state files afterwards.

    Raises:
        UserError: Another ``railbus up`` uses the folder, or the folder cannot be written.
    """
    with _open_lock(folder) as lock:
        if not _locked(lock):
            raise UserError(
                f"a tree is running already ({_described(folder)}): stop it first, or give this one a folder of its own"
                f" with {STATE_DIR_VARIABLE}"
            )
        try:
            _remove_state(folder)  # a killed process leaves its state, with addresses that are not this process's
        except OSError as error:
            raise _unwritable(folder, error) from None
        try:
            yield
        finally:
            _remove_state(folder)


def _locked(lock: TextIO) -> bool:
    for left in reversed(range(LOCK_TRIES)):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if left:
                time.sleep(LOCK_PAUSE_S)
        else:
            return True
    return False


def write_state(tree: RunningTree, folder: Path) -> None:
    """Write ``up.json`` and ``scrape.json`` atomically.

    Raises:
        UserError: The folder cannot be written, or its disk is full.
    """
    for path, content, mode in (
        (_scrape_file(folder), scrape_targets(tree), 0o666),
        (_state_file(folder), asdict(tree), 0o600),  # the address of Redis may have a password
    ):
        fresh = path.with_name(f"{path.name}.new")
        try:
            fresh.unlink(missing_ok=True)  # a killed process may have left one
            fresh.touch(mode=mode)
            fresh.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            fresh.replace(path)
        except OSError as error:
            raise _unwritable(folder, error) from None


def scrape_targets(tree: RunningTree) -> list[dict[str, Any]]:
    """Return the addresses of all metrics endpoints in the format of Prometheus' ``file_sd_configs``."""
    edges = {f"edge-{number}" if number > 1 else "edge": url for number, url in enumerate(tree.edges, start=1)}
    return [
        {
            "targets": [urlsplit(url).netloc],
            "labels": {"service": name.split("-")[0], "process": name}
            | ({"__scheme__": "https"} if url.startswith("https:") else {}),
        }
        for name, url in {**edges, **tree.health}.items()
    ]


def _remove_state(folder: Path) -> None:
    _state_file(folder).unlink(missing_ok=True)
    _scrape_file(folder).unlink(missing_ok=True)


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
    """Return the state of the ``railbus up`` that uses this folder; None if none runs."""
    try:
        # A killed process leaves its state file, but not its lock.
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
