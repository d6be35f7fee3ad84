"""What the rails service is told by its environment."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.policy.files import DEFAULT_POLICY


def _setting(default: Any, help_text: str, **metadata: Any) -> Any:
    return field(default=default, metadata={"help": help_text, **metadata})


@dataclass(frozen=True, slots=True, kw_only=True)
class RailsSettings:
    """How the service runs.

    Attributes:
        policy: Folder of the policy.
        rails_room: Interactive requests judged at once; when there are so many, reading pauses. Of the batch there are
            as many as processes of the classifier.
        rails_classifiers: Processes of the classifier, each of which reads one prompt at a time.
        rails_instance: Static membership: a restart within the session timeout waits for no rebalance.
        opa_url: An OPA server that decides on admission; None decides in process.
        decision_log: File to which each decision of the Rego in process is appended; None logs none.
        redis_url: Where answers are remembered; None remembers none.
    """

    policy: Path = field(default=DEFAULT_POLICY, metadata={"help": "folder of the policy"})
    rails_room: int = _setting(256, "requests judged at once", ge=1, le=100_000)
    rails_classifiers: int = _setting(2, "processes of the classifier, one core and 240 MB each", ge=1, le=64)
    rails_instance: str | None = _setting(None, "a name no other rails process has: a restart waits for no rebalance")
    opa_url: str | None = _setting(None, "http://HOST:PORT of an OPA server; none = in process")
    decision_log: Path | None = field(
        default=None, metadata={"help": "file for a line per decision of the Rego in process, as OPA writes them"}
    )
    redis_url: str | None = _setting(None, "redis://HOST:PORT where answers are remembered", secret=True)
