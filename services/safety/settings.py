"""What the safety service is told by its environment."""

from dataclasses import dataclass, field
from pathlib import Path

from services.policy.files import DEFAULT_POLICY


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetySettings:
    """How the service runs.

    Attributes:
        policy: Folder of the policy.
        safety_instance: Static membership: a restart within the session timeout waits for no rebalance.
        safety_queue: Events read and not dealt with; when there are so many, reading pauses.
    """

    policy: Path = field(default=DEFAULT_POLICY, metadata={"help": "folder of the policy"})
    safety_instance: str | None = field(
        default=None, metadata={"help": "a name no other safety process has: a restart then waits for no rebalance"}
    )
    safety_queue: int = field(
        default=8_192, metadata={"help": "events read ahead of the checks", "ge": 500, "le": 1_000_000}
    )
