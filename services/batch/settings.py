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
    """Settings of the batch service, which runs jobs.

    Attributes:
        batch_dir: Folder of the jobs' files. All batch services, edges and users of ``railbus batch`` must share it.
        batch_instance: Name of this batch service. No other batch service may have the same name. A restart with the
            same name within the session timeout causes no rebalance.
        batch_total_ms: Total deadline of each request of a job, in milliseconds, clamped to the policy's bounds.
        batch_stall_ms: Maximum time in milliseconds between two chunks of an answer. If no chunk comes in this time,
            for example because the generator was killed, the router starts another attempt. The router waits at least
            ten seconds.
        batch_line_timeout_ms: Time in milliseconds after which a request that was not closed is given up.
        input_gate: With ``hold``, no answer counts before the verdict of a rails service, even if the worker's
            ``Started`` event requires no verdict.
        output_check: With ``on``, no answer counts before a safety service has checked it, even if the worker's
            ``Started`` event requires no check.
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
        """Return the deadlines of each request.

        A request may wait in queues until its total deadline. The stall deadline applies only after an attempt has
        started.
        """
        total_ms = self.batch_total_ms
        return Deadlines(verdict_ms=total_ms, ttft_ms=total_ms, stall_ms=self.batch_stall_ms, total_ms=total_ms)

    @property
    def governance(self) -> Governance:
        """Return which checks are required before text counts as an answer."""
        return Governance(input_gate=self.input_gate, output_check=self.output_check)
