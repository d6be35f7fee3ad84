"""What the engine ``simulated`` simulates."""

from dataclasses import dataclass, field
from typing import Literal

from services.generator.engines.script import Script, parse
from services.generator.engines.simulation import Machine
from services.physics.gpus import gpu
from services.physics.models import model
from services.physics.pairing import Pair
from services.physics.roofline import require_fit
from services.runtime.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSettings:
    """What is simulated.

    Attributes:
        model: The name it answers to; a script may follow it.
        sim_gpu: Accelerator, from the catalogue.
        sim_target: Model that answers, from the catalogue.
        sim_draft: Model that drafts; ``none`` turns speculation off.
        sim_precision: Of the linear layers.
        sim_gamma: Tokens drafted.
        sim_adaptive: ``on`` drafts what load and measured acceptance make worth while, at most ``sim_gamma``.
        sim_alpha: Chance that a drafted token is accepted.
        sim_batch: Most answers at once.
        sim_prefill_budget: Most prompt tokens in a step.
        sim_time_scale: Time a step takes over what the physics says; below 1 it runs faster.
        sim_script: What requests for ``default`` are made to do.
        sim_script_rate: What share of them.
    """

    model: str = field(default="simulated", metadata={"help": "name the model answers to"})
    sim_gpu: str = field(default="h100", metadata={"help": "accelerator"})
    sim_target: str = field(default="gemma-3-27b", metadata={"help": "model that answers"})
    sim_draft: str = field(default="gemma-3-4b", metadata={"help": "model that drafts, or none"})
    sim_precision: Literal["bf16", "fp8", "int4"] = field(default="fp8", metadata={"help": "of the linear layers"})
    sim_gamma: int = field(default=4, metadata={"help": "tokens drafted", "ge": 0, "le": 16})
    sim_adaptive: Literal["off", "on"] = field(default="off", metadata={"help": "gamma follows load and acceptance"})
    sim_alpha: float = field(default=0.8, metadata={"help": "chance of acceptance", "ge": 0, "le": 1})
    sim_batch: int = field(default=256, metadata={"help": "most answers at once", "ge": 1, "le": 10_000})
    sim_prefill_budget: int = field(default=2_048, metadata={"help": "prompt tokens in a step", "ge": 1, "le": 131_072})
    sim_time_scale: float = field(
        default=1.0, metadata={"help": "time of a step over what physics says", "ge": 0.001, "le": 1_000}
    )
    sim_script: str = field(default="", metadata={"help": "what answers are made to do, such as n50-die10"})
    sim_script_rate: float = field(default=1.0, metadata={"help": "what share of them", "ge": 0, "le": 1})

    def machine(self) -> Machine:
        """The machine that these settings describe.

        Raises:
            UserError: There is no such thing, or the model does not fit.
        """
        try:
            on, target = gpu(self.sim_gpu), model(self.sim_target)
            drafts = self.sim_draft != "none" and self.sim_gamma > 0
            draft = model(self.sim_draft) if drafts else target
            require_fit(target, on, self.sim_precision)
        except ValueError as error:
            raise UserError(f"RAILBUS_SIM_GPU, _TARGET, _DRAFT or _PRECISION: {error}") from None
        return Machine(
            pair=Pair(target=target, draft=draft, gpu=on, precision=self.sim_precision),
            gamma=self.sim_gamma if drafts else 0,
            adaptive=self.sim_adaptive == "on",
            alpha=self.sim_alpha,
            batch=self.sim_batch,
            budget=self.sim_prefill_budget,
            scale=self.sim_time_scale,
        )

    def script(self) -> Script:
        """What answers are made to do.

        Raises:
            UserError: It is not understood.
        """
        try:
            return parse(self.sim_script)
        except ValueError as error:
            raise UserError(f"RAILBUS_SIM_SCRIPT={self.sim_script!r}: {error}") from None
