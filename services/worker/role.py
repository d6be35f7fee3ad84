"""Which worker a process is."""

from dataclasses import dataclass

from schemas.registry import RoleName
from schemas.stream import Check, Gate
from schemas.topics import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a service is as a worker.

    Attributes:
        name: Of the service, as the registry has it; also its consumer group.
        topic: Where its requests come from.
        batch: Where requests come from that wait while the engine is busy; None when there are none.
        slots: Most executions at once; 0 takes what the engine can.
        queue: Accepted requests that may wait for a slot; when they do, the topics are paused.
        input_gate: ``off`` says on the log that text may be shown before any verdict.
        output_check: ``off`` says on the log that no safety service checks the answers.
        instance: Static membership: a name no other process of the role has; None for none.
    """

    name: RoleName
    topic: Topic
    batch: Topic | None = None
    slots: int = 0
    queue: int = 256
    input_gate: Gate = "off"
    output_check: Check = "off"
    instance: str | None = None
