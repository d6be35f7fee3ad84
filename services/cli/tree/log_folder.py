"""The folder of the broker's log: chosen, checked and, when the operator asks for it, emptied, before anything starts.

Its content is the broker's (``services/broker/storage/data_directory.py``); only its names and its lock are known here.
"""

import fcntl
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from schemas.topics import DEFAULT_PARTITIONS, REQUESTS
from services.cli.tree.state_file import DISK_FULL, STATE_DIR_VARIABLE
from services.runtime.errors import UserError

PROBE_BYTES: Final = 1_048_576
"""Number of bytes written to the log's folder and removed again, to find a full disk. On a full disk a broker would
start, and then keep nothing."""

PARTITIONS_VARIABLE: Final = "RAILBUS_PARTITIONS"

_GROUPS: Final = "groups.json"
_FORGOTTEN: Final = ("topics.json", "offsets.jsonl", _GROUPS)
_RECORDS: Final = "topics"
_LOCK: Final = "lock"


def embedded_log_dir(data_dir: Path | None, folder: Path, *, forget: bool) -> Path:
    """Return the folder the operator named, or the tree's own, in which earlier trees left their log.

    Args:
        data_dir: The folder the operator named.
        folder: The tree's state folder.
        forget: Remove the log that is there.

    Raises:
        UserError: The folder cannot be written, its disk is full, another broker uses it, or its log has another number
            of partitions than this tree.
    """
    chosen = folder / "log" if data_dir is None else data_dir
    _refuse_used(chosen)
    if forget:
        _empty(chosen)
    _check_partitions(chosen)
    _check_writable(chosen, "with --data-dir" if data_dir is not None else f"with {STATE_DIR_VARIABLE}")
    # No member of an earlier tree lives. One that this tree does not have, a second router, would hold its partitions
    # until its session ends. What the groups committed is in another file, and stays.
    with suppress(OSError):
        (chosen / _GROUPS).unlink(missing_ok=True)
    return chosen


def kafka_log_dir(data_dir: Path | None, folder: Path) -> Path:
    """Return the folder of Apache Kafka's nodes: the one the operator named, or an empty one of our own.

    Raises:
        UserError: The folder cannot be written, or its disk is full.
    """
    if data_dir is None:
        shutil.rmtree(folder / "kafka", ignore_errors=True)
    chosen = folder / "kafka" if data_dir is None else data_dir
    _check_writable(chosen, "with --data-dir" if data_dir is not None else f"with {STATE_DIR_VARIABLE}")
    return chosen


def _refuse_used(chosen: Path) -> None:
    try:
        lock = os.open(chosen / _LOCK, os.O_RDWR)
    except OSError:
        return  # no broker has been here, or the folder is refused below
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UserError(
            f"the log in {chosen} is in use by another broker: stop the tree that it belongs to, or name another"
            " folder with --data-dir"
        ) from None
    finally:
        os.close(lock)


def _empty(chosen: Path) -> None:
    """Remove the broker's own files and nothing else: the operator may have named any folder."""
    try:
        for name in _FORGOTTEN:
            (chosen / name).unlink(missing_ok=True)
        if (chosen / _RECORDS).exists():
            shutil.rmtree(chosen / _RECORDS)
    except OSError as error:
        raise UserError(f"--forget: the log in {chosen} cannot be removed: {error}") from None


def _check_partitions(chosen: Path) -> None:
    """Refuse a log with another number of partitions, because all services would end with the same complaint."""
    try:
        kept = json.loads((chosen / "topics.json").read_bytes())["topics"][REQUESTS.name]["partitions"]
        wanted = int(os.environ.get(PARTITIONS_VARIABLE) or DEFAULT_PARTITIONS)
    except (OSError, ValueError, KeyError, TypeError):
        return  # no log yet; what is wrong with a file or a variable, its reader says
    if kept != wanted:
        raise UserError(
            f"the log in {chosen} has {kept} partitions, and this tree {wanted}: set {PARTITIONS_VARIABLE}={kept},"
            " or begin a new log with --forget"
        )


def _check_writable(chosen: Path, named: str) -> None:
    probe = chosen / ".railbus-probe"
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(bytes(PROBE_BYTES))
    except OSError as error:
        remedy = "free some space" if error.errno in DISK_FULL else "make it writable"
        raise UserError(
            f"the broker's log folder {chosen} cannot be written ({error.strerror}): {remedy}, or name another {named}"
        ) from None
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
