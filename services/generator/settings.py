"""The generator's own settings; each engine has further ones."""

from dataclasses import dataclass, field
from typing import Literal

from schemas.topics import REQUESTS, REQUESTS_BATCH
from services.worker.engine import EngineName
from services.worker.scheduler import WorkerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSettings:
    """The generator, whatever its engine.

    Attributes:
        engine: The engine that generates.
        generator_slots: Most executions at once. 0 means as many as the engine can run.
        generator_batch_slots: Most of these executions for the batch lane. 0 means three quarters of them. Where there
            is more than one slot, one stays free for interactive requests.
        generator_queue: Accepted requests that may wait for a slot. When so many wait, the generator reads no more
            requests.
        generator_drain_ms: How long running answers may take to finish when the generator is asked to stop. What has
            not begun is left to another generator at once.
        generator_instance: A name that no other generator has. A restart under the same name within the session timeout
            causes no rebalance.
        generator_cores: Cores that the generator may run on, such as ``0-3,8``. Not set: all that it was started with.
        input_gate: ``hold``: no text is shown before the verdict of a rails service. ``off`` where none runs. The
            generator writes the value to the log; edges and router believe ``off`` only if they are set to it as well.
        output_check: ``on``: a safety service checks the answers. ``off`` where none runs. As for ``input_gate``.
    """

    engine: EngineName = field(default="llama", metadata={"help": "engine that generates"})
    generator_slots: int = field(
        default=0,
        metadata={"help": "maximum number of concurrent executions, 0 = the engine's capacity", "ge": 0, "le": 10_000},
    )
    generator_batch_slots: int = field(
        default=0, metadata={"help": "most executions of the batch lane, 0 = three quarters", "ge": 0, "le": 10_000}
    )
    generator_queue: int = field(
        default=256, metadata={"help": "accepted requests that may wait for a slot", "ge": 1, "le": 100_000}
    )
    generator_drain_ms: int = field(
        default=20_000,
        metadata={"help": "how long answers may take to finish when it stops", "ge": 0, "le": 20_000},
    )
    generator_instance: str | None = field(
        default=None, metadata={"help": "static member id, unique among generators: a restart causes no rebalance"}
    )
    generator_cores: str = field(default="", metadata={"help": "cores it may run on, such as 0-3,8"})
    input_gate: Literal["hold", "off"] = field(default="hold", metadata={"help": "whether text waits for a verdict"})
    output_check: Literal["on", "off"] = field(default="on", metadata={"help": "whether a safety service checks"})

    def worker_config(self) -> WorkerConfig:
        return WorkerConfig(
            name="generator",
            topic=REQUESTS,
            batch=REQUESTS_BATCH,
            slots=self.generator_slots,
            batch_slots=self.generator_batch_slots,
            queue=self.generator_queue,
            drain_s=self.generator_drain_ms / 1_000,
            input_gate=self.input_gate,
            output_check=self.output_check,
            instance=self.generator_instance,
        )
