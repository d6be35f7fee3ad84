"""A line for every decision of the Rego in process, in the field names of OPA's own decision logs.

What is asked holds no text of anyone's, and so neither does the log.
"""

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from services.runtime import UserError
from services.runtime.logging import logger

MODE: Final = 0o600

_log = logger("policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was asked and answered.

    Attributes:
        entry_point: Such as ``data.railbus.admission.decision``.
        asked: Rego's input.
        answer: What it said; None when it is undefined or failed.
        error: Why there is no usable answer.
        took_ns: How long it took, in nanoseconds; 0 for an answer that was known.
        policy: The policy's name.
        version: Its version.
    """

    entry_point: str
    asked: Mapping[str, Any]
    answer: Any
    error: str | None
    took_ns: int
    policy: str
    version: str


Listener = Callable[[Decision], None]


def line_of(decision: Decision, *, decision_id: str, now: datetime, labels: Mapping[str, str]) -> dict[str, Any]:
    """The decision as OPA writes one."""
    line = {
        "labels": dict(labels),
        "decision_id": decision_id,
        "bundles": {decision.policy: {"revision": decision.version}},
        "path": decision.entry_point.removeprefix("data.").replace(".", "/"),
        "input": dict(decision.asked),
        "result": decision.answer,
        "timestamp": now.isoformat().replace("+00:00", "Z"),
        "metrics": {"timer_rego_query_eval_ns": decision.took_ns},
    }
    if decision.error is not None:
        del line["result"]
        line["error"] = {"message": decision.error}
    return line


class DecisionLog:
    """Appends to a file, a line at a time, so that processes may share one and it may be truncated by a rotation.

    Args:
        path: The file; made if it is not there, readable by its owner only.
        service: Which service decides, for the ``labels``.

    Raises:
        UserError: It cannot be written.
    """

    def __init__(self, path: Path, service: str) -> None:
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, MODE)
        except OSError as error:
            raise UserError(f"RAILBUS_DECISION_LOG={path}: {error.strerror}; name a file that can be written") from None
        self._labels = {"app": f"railbus-{service}", "id": str(uuid.uuid4())}
        self._fails = False

    def __call__(self, decision: Decision) -> None:
        """Write it. A full disk stops no request; it is said once."""
        line = line_of(decision, decision_id=str(uuid.uuid4()), now=datetime.now(UTC), labels=self._labels)
        try:
            os.write(self._file, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            self._fails = False
        except OSError as error:
            if not self._fails:
                self._fails = True
                _log.error("decisions are not logged: %s", error.strerror)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
