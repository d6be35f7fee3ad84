import fcntl
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from schemas.topics import DEFAULT_PARTITIONS, REQUESTS
from services.cli.tree.state_file import STATE_DIR_VARIABLE
from services.runtime.errors import DISK_FULL, UserError

PROBE_BYTES: Final = 1_048_576
"""Number of bytes written to the log's folder and removed again, to find a full disk. On a full disk a broker would
start, and then keep nothing."""

PARTITIONS_VARIABLE: Final = "RAILBUS_PARTITIONS"

_GROUPS: Final = "groups.json"
_TOPICS: Final = "topics.json"
_FORGOTTEN: Final = (_TOPICS, "offsets.jsonl", _GROUPS)
_RECORDS: Final = "topics"
_LOCK: Final = "lock"


def embedded_log_dir(data_dir: Path | None, folder: Path, *, forget: bool) -> Path:
    """Return the folder of the embedded broker's log: ``data_dir``, or else ``log`` in the state folder ``folder``.

    With ``forget``, an existing log is removed.

    Raises:
        UserError: The folder cannot be used.
    """
    chosen = folder / "log" if data_dir is None else data_dir
    _refuse_used(chosen)
    _refuse_foreign(chosen)
    if forget:
        _empty(chosen)
    _check_partitions(chosen)
    _check_writable(chosen, "with --data-dir" if data_dir is not None else f"with {STATE_DIR_VARIABLE}")
    # All members of the consumer groups have ended. A member that is not started again, such as a second router, would
    # keep its partitions until its session times out. Committed offsets are in another file, and are kept.
    with suppress(OSError):
        (chosen / _GROUPS).unlink(missing_ok=True)
    return chosen


def kafka_log_dir(data_dir: Path | None, folder: Path) -> Path:
    """Return the folder for Apache Kafka's data: ``data_dir``, or else ``kafka`` in the state folder ``folder``.

    If ``data_dir`` is None, delete everything in the folder ``kafka`` first.

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
        return  # no broker has used it, or ``_check_writable`` refuses it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise UserError(
            f"the log in {chosen} is in use by another broker: stop the tree that it belongs to, or name another"
            " folder with --data-dir"
        ) from None
    finally:
        os.close(lock)


def _refuse_foreign(chosen: Path) -> None:
    try:
        if (chosen / _LOCK).exists() or (chosen / _TOPICS).exists():
            return  # a broker's log
        foreign = next((name for name in (*_FORGOTTEN, _RECORDS) if (chosen / name).exists()), None)
    except OSError:
        return  # ``_check_writable`` refuses it
    if foreign is not None:
        raise UserError(
            f"{chosen} has a {foreign} that is not of a broker's log: name another folder with --data-dir, or move it"
            " away"
        )


def _empty(chosen: Path) -> None:
    try:
        # Only the broker's own files are removed, because the operator may have named any folder.
        for name in _FORGOTTEN:
            (chosen / name).unlink(missing_ok=True)
        if (chosen / _RECORDS).exists():
            shutil.rmtree(chosen / _RECORDS)
    except OSError as error:
        raise UserError(f"--forget: the log in {chosen} cannot be removed: {error}") from None


def _check_partitions(chosen: Path) -> None:
    try:
        kept = json.loads((chosen / _TOPICS).read_bytes())["topics"][REQUESTS.name]["partitions"]
        wanted = int(os.environ.get(PARTITIONS_VARIABLE) or DEFAULT_PARTITIONS)
    except (OSError, ValueError, KeyError, TypeError):
        return  # there is no log yet, or a service will report the bad file or variable
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
