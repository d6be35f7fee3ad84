"""A log of all decisions that Rego makes in this process, in the format of OPA's decision logs.

The log contains no user text.
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
class RegoDecision:
    """A decision of Rego.

    Attributes:
        entry_point: The rule that was evaluated, such as ``data.railbus.admission.decision``.
        asked: Rego's input.
        answer: Rego's answer; None if it is undefined or the evaluation failed.
        error: Why there is no usable answer; None if the answer is usable.
        took_ns: CPU time of the evaluation in nanoseconds; 0 for a cached answer.
        policy: The policy's name.
        version: The policy's version.
    """

    entry_point: str
    asked: Mapping[str, Any]
    answer: Any
    error: str | None
    took_ns: int
    policy: str
    version: str


DecisionListener = Callable[[RegoDecision], None]


def opa_log_line(
    decision: RegoDecision, *, decision_id: str, now: datetime, labels: Mapping[str, str]
) -> dict[str, Any]:
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
    """A file to which decisions are appended, one per line. Several processes may share the file.

    Args:
        path: The file. If it does not exist, it is created, and only its owner can read it.
        service: The service's name.

    Raises:
        UserError: The file cannot be written.
    """

    def __init__(self, path: Path, service: str) -> None:
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, MODE)
        except OSError as error:
            raise UserError(f"RAILBUS_DECISION_LOG={path}: {error.strerror}; name a file that can be written") from None
        self._labels = {"app": f"railbus-{service}", "id": str(uuid.uuid4())}
        self._fails = False

    def __call__(self, decision: RegoDecision) -> None:
        """Append a decision. If the write fails, log the failure and raise nothing."""
        line = opa_log_line(decision, decision_id=str(uuid.uuid4()), now=datetime.now(UTC), labels=self._labels)
        try:
            os.write(self._file, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            self._fails = False
        except OSError as error:
            if not self._fails:
                self._fails = True
                _log.error("decisions are not logged: %s", error.strerror)

    def close(self) -> None:
        os.close(self._file)
