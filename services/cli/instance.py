"""Which tree runs here: a small file that ``railbus up`` writes, so that the other commands need no addresses."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from services.runtime.errors import UserError

STATE_DIR_VARIABLE: Final = "RAILBUS_STATE_DIR"
DEFAULT_STATE_DIR: Final = ".railbus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A running tree.

    Attributes:
        pid: Its supervisor.
        url: Its edge.
        kafka: Its broker, ``HOST:PORT``.
        partitions: Of the request topics.
        redis_url: Its Redis; None when it has none.
        pids: Process id of each service.
        health: Address of each service's ``/healthz``, ``/readyz`` and ``/metrics``.
    """

    pid: int
    url: str
    kafka: str
    partitions: int
    redis_url: str | None = None
    pids: dict[str, int] = field(default_factory=dict)
    health: dict[str, str] = field(default_factory=dict)


def state_dir() -> Path:
    """Where the running tree keeps its file and the embedded broker its log: ``RAILBUS_STATE_DIR``, or ``.railbus``."""
    return Path(os.environ.get(STATE_DIR_VARIABLE) or DEFAULT_STATE_DIR)


@contextmanager
def sole(folder: Path) -> Iterator[None]:
    """Holds the folder's lock while the block runs; the kernel frees it however the process ends.

    Raises:
        UserError: Another tree runs here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _lock_file(folder).open("w") as lock:
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
            _instance_file(folder).unlink(missing_ok=True)


def record(instance: Instance, folder: Path) -> None:
    """Writes the file, whole or not at all."""
    fresh = folder / "up.json.new"
    fresh.write_text(json.dumps(asdict(instance), indent=2) + "\n", encoding="utf-8")
    fresh.replace(_instance_file(folder))


def find(folder: Path) -> Instance | None:
    """The tree that runs, or None; what a killed supervisor left behind counts as none."""
    try:
        with _lock_file(folder).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
    except BlockingIOError:
        pass
    except OSError:
        return None
    return _read(folder)


def _read(folder: Path) -> Instance | None:
    try:
        return Instance(**json.loads(_instance_file(folder).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _described(folder: Path) -> str:
    found = _read(folder)
    return "it is starting" if found is None else f"process {found.pid} at {found.url}"


def _lock_file(folder: Path) -> Path:
    return folder / "up.lock"


def _instance_file(folder: Path) -> Path:
    return folder / "up.json"
