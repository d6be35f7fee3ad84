"""The anchors: the newest checkpoint of each partition, in a file outside the archive."""

import os
from collections.abc import Iterable
from pathlib import Path

from services.archive.checkpoint import Checkpoint, anchors_json
from services.runtime.logging import logger

_log = logger("audit")


def write_anchors(path: Path, checkpoints: Iterable[Checkpoint]) -> None:
    """Replace the file; log an error instead of raising it, because the archive itself is whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(anchors_json(checkpoints))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        _log.error("RAILBUS_AUDIT_ANCHORS=%s cannot be written: %s", path, error.strerror)
