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
        batch_instance: Unique name of this batch service, used as Kafka's ``group.instance.id``.
        batch_total_ms: Total deadline of each request of a job, in milliseconds. A policy may limit it.
        batch_stall_ms: Maximum time in milliseconds between two chunks of an answer. After this time, the router starts
            another attempt. The minimum is ten seconds.
        batch_line_timeout_ms: Maximum time in milliseconds between the submission and the closing of a request. If a
            request takes longer, its line gets an error.
        input_gate: With ``hold``, an answer is accepted only if a rails service has given a verdict on its prompt.
        output_check: With ``on``, an answer is accepted only if a safety service has checked it.
    """

    batch_dir: Path = field(
        default=Path(".railbus/batch"), metadata={"help": "folder of the files of batch jobs, shared with the edge"}
    )
    batch_instance: str | None = setting(
        None, "unique name of this batch service, so that a quick restart causes no rebalance"
    )
    batch_total_ms: int = setting(
        DAY_MS, "total deadline of each request of a job; the policy may shorten it", ge=1_000, le=DAY_MS
    )
    batch_stall_ms: int = setting(
        60_000,
        "time without a new chunk after which the router starts another attempt of a job's request",
        ge=10_000,
        le=DAY_MS,
    )
    batch_line_timeout_ms: int = setting(
        90_000_000,
        "time after its submission at which a request that is not closed gets an error",
        ge=1_000,
        le=7 * DAY_MS,
    )
    input_gate: Literal["hold", "off"] = setting(
        "hold", "hold = an answer counts only with a verdict on its prompt, off = no rails service runs"
    )
    output_check: Literal["on", "off"] = setting("on", "whether a safety service checks answers")

    @property
    def deadlines(self) -> Deadlines:
        total_ms = self.batch_total_ms
        # Requests wait in queues, so the verdict and the first token may take as long as the whole answer.
        return Deadlines(verdict_ms=total_ms, ttft_ms=total_ms, stall_ms=self.batch_stall_ms, total_ms=total_ms)

    @property
    def governance(self) -> Governance:
        return Governance(input_gate=self.input_gate, output_check=self.output_check)
