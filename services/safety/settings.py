"""The settings of the safety service."""

from dataclasses import dataclass, field
from pathlib import Path

from schemas.requests import LONGEST_TOTAL_MS
from schemas.topics import DAY_MS
from services.policy.source.files import DEFAULT_POLICY
from services.runtime.settings import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of the safety service, which checks answers.

    Attributes:
        policy: Folder of the policy.
        safety_instance: A name that no other safety process has. If a process restarts with the same name within the
            session timeout, there is no rebalance.
        total_max_ms: Longest total deadline of an interactive request. It must be the same as for the router. A policy
            that allows a longer deadline is refused. A starting process reads the log again, from ``total_max_ms``
            milliseconds ago or earlier, because answers that began then may still be running.
        safety_queue: Maximum number of events that are read ahead of the checks. When this number is reached, reading
            pauses.
    """

    policy: Path = field(default=DEFAULT_POLICY, metadata={"help": "folder of the policy"})
    safety_instance: str | None = setting(
        None, "unique name of this process, so that a quick restart causes no rebalance"
    )
    total_max_ms: int = setting(
        LONGEST_TOTAL_MS, "longest total deadline of an interactive request", ge=1_000, le=DAY_MS
    )
    safety_queue: int = setting(8_192, "maximum number of events read ahead of the checks", ge=500, le=1_000_000)
