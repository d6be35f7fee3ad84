"""The batch service's settings."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from schemas.requests import Deadlines
from schemas.topics import DAY_MS
from services.runtime.settings import setting
from services.stream import Governance


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The batch service, which runs jobs.

    Attributes:
        batch_dir: Folder of the jobs' files. Batch services, edges and whoever runs ``railbus batch`` share it.
        batch_instance: A name that no other batch service has. A restart under the same name within the session
            timeout causes no rebalance.
        batch_total_ms: Total deadline that each request of a job asks for; the policy's bounds hold.
        batch_stall_ms: What a generator has begun and then leaves silent for so long is begun again, such as when the
            generator was killed. The router waits for ten seconds at least.
        batch_line_timeout_ms: A request that nobody closes is given up after so long.
        input_gate: ``hold``: no answer counts before the verdict of a rails service, whatever a worker says.
        output_check: ``on``: no answer counts before a safety service has checked it, whatever a worker says.
    """

    batch_dir: Path = field(
        default=Path(".railbus/batch"), metadata={"help": "folder of the files of batch jobs, shared with the edge"}
    )
    batch_instance: str | None = setting(None, "name of this process, unique: a restart then causes no rebalance")
    batch_total_ms: int = setting(DAY_MS, "total deadline that a job's requests ask for", ge=1_000, le=DAY_MS)
    batch_stall_ms: int = setting(60_000, "silence after which an answer of a job is begun again", ge=10_000, le=DAY_MS)
    batch_line_timeout_ms: int = setting(
        90_000_000, "after which a request that nobody closes is given up", ge=1_000, le=7 * DAY_MS
    )
    input_gate: Literal["hold", "off"] = setting("hold", "whether text waits for a verdict")
    output_check: Literal["on", "off"] = setting("on", "whether a safety service checks")

    @property
    def deadlines(self) -> Deadlines:
        """Return each request's deadlines: it may wait in queues, and stall only when an attempt has begun."""
        total_ms = self.batch_total_ms
        return Deadlines(verdict_ms=total_ms, ttft_ms=total_ms, stall_ms=self.batch_stall_ms, total_ms=total_ms)

    @property
    def governance(self) -> Governance:
        """Return which checks are required before text counts as an answer."""
        return Governance(input_gate=self.input_gate, output_check=self.output_check)
