from dataclasses import dataclass, field
from typing import Literal

from schemas.topics import REQUESTS, REQUESTS_BATCH
from services.worker.engine import EngineName
from services.worker.scheduler import WorkerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSettings:
    """Settings of the generator that apply to all engines.

    Attributes:
        engine: Name of the engine that generates the answers.
        generator_slots: Maximum number of answers generated at the same time. 0 means the engine's capacity.
        generator_batch_slots: Maximum number of slots that the batch lane may use. 0 means three quarters of the slots.
            If there are several slots, a batch request starts only if another slot stays free.
        generator_queue: Maximum number of accepted requests that wait for a slot. The generator stops reading requests
            while this many wait.
        generator_drain_ms: Maximum time that running answers may take to finish after the generator was told to stop.
            Requests that have not started are handed to another generator at once.
        generator_instance: Unique id for static group membership. A restart within the session timeout then causes no
            rebalance.
        generator_cores: CPU cores that the generator may use, such as ``0-3,8``. If not set, the generator is not
            bound to cores.
        input_gate: ``hold`` means that no text is shown before the verdict of a rails service. Set ``off`` only where
            no rails service runs. ``off`` has no effect on edges and routers whose own setting is ``hold``.
        output_check: ``on`` means that a safety service checks the answers. Set ``off`` only where no safety service
            runs. ``off`` has no effect on edges and routers whose own setting is ``on``.
    """

    engine: EngineName = field(default="llama", metadata={"help": "engine that generates the answers"})
    generator_slots: int = field(
        default=0,
        metadata={"help": "maximum number of concurrent answers, 0 = the engine's capacity", "ge": 0, "le": 10_000},
    )
    generator_batch_slots: int = field(
        default=0,
        metadata={
            "help": "maximum number of slots for the batch lane, 0 = three quarters of the slots",
            "ge": 0,
            "le": 10_000,
        },
    )
    generator_queue: int = field(
        default=256,
        metadata={"help": "maximum number of accepted requests that wait for a slot", "ge": 1, "le": 100_000},
    )
    generator_drain_ms: int = field(
        default=20_000,
        metadata={"help": "how long answers may take to finish when the generator stops", "ge": 0, "le": 20_000},
    )
    generator_instance: str | None = field(
        default=None, metadata={"help": "unique name of this generator, so that a quick restart causes no rebalance"}
    )
    generator_cores: str = field(default="", metadata={"help": "CPU cores that the generator may use, such as 0-3,8"})
    input_gate: Literal["hold", "off"] = field(
        default="hold",
        metadata={"help": "hold = no text is shown before a rails service's verdict, off = no rails service runs"},
    )
    output_check: Literal["on", "off"] = field(
        default="on", metadata={"help": "whether a safety service checks answers"}
    )

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
