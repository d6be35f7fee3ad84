"""The generator's own settings; each engine has its own beside them."""

from dataclasses import dataclass, field
from typing import Literal

from schemas.topics import REQUESTS, REQUESTS_BATCH
from services.worker.engine import EngineName
from services.worker.role import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSettings:
    """How the generator runs.

    Attributes:
        engine: What generates.
        generator_slots: Most executions at once; 0 takes what the engine can.
        generator_queue: Accepted requests that may wait for a slot; when they do, the topics are paused.
        generator_instance: Static membership in the groups that deal out requests.
        input_gate: ``off`` says on the log that text may be shown before any verdict.
        output_check: ``off`` says on the log that no safety service checks the answers.
    """

    engine: EngineName = field(default="llama", metadata={"help": "what generates"})
    generator_slots: int = field(
        default=0, metadata={"help": "most executions at once, 0 = what the engine can", "ge": 0, "le": 10_000}
    )
    generator_queue: int = field(
        default=256, metadata={"help": "accepted requests that may wait for a slot", "ge": 1, "le": 100_000}
    )
    generator_instance: str | None = field(
        default=None, metadata={"help": "a name no other generator has: a restart then waits for no rebalance"}
    )
    input_gate: Literal["hold", "off"] = field(default="off", metadata={"help": "whether text waits for a verdict"})
    output_check: Literal["on", "off"] = field(default="off", metadata={"help": "whether a safety service checks"})

    def role(self) -> Role:
        """The generator as a worker."""
        return Role(
            name="generator",
            topic=REQUESTS,
            batch=REQUESTS_BATCH,
            slots=self.generator_slots,
            queue=self.generator_queue,
            input_gate=self.input_gate,
            output_check=self.output_check,
            instance=self.generator_instance,
        )
