from dataclasses import dataclass, field
from typing import Literal

from services.generator.engines.simulated.batch_scheduler import CostModel
from services.generator.engines.simulated.fault_script import FaultScript, parse_script
from services.physics.catalogue.gpus import gpu
from services.physics.catalogue.models import model
from services.physics.catalogue.precisions import Precision
from services.physics.efficiency import practical
from services.physics.pairing import SpeculationPair
from services.physics.roofline import require_fit
from services.runtime.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSettings:
    """Settings of the engine ``simulated``. It runs no model, and generates words at the pace of a model on a GPU.

    Attributes:
        model: Name of the model in requests. A request may append a script to the name, as in ``simulated-n50-die10``.
            The module ``fault_script`` lists the parts of a script.
        sim_gpu: Name of the GPU in the catalogue in ``services/physics``.
        sim_target: Name of the target model in the catalogue.
        sim_draft: Name of the draft model in the catalogue. ``none`` turns speculation off.
        sim_precision: Numeric precision of the linear layers.
        sim_gamma: Number of tokens drafted in a step.
        sim_adaptive: With ``on``, the number of drafted tokens is chosen for each step from load and measured
            acceptance. ``RAILBUS_SIM_GAMMA`` is then the maximum.
        sim_alpha: Probability that a drafted token is accepted.
        sim_batch: Maximum number of answers generated at the same time.
        sim_prefill_budget: Maximum number of prompt tokens in a step.
        sim_time_scale: Factor by which the modelled duration of a step is multiplied.
        sim_script: Script for requests that append no script.
        sim_script_rate: Probability that ``sim_script`` is applied to a request that appends no script.
    """

    model: str = field(default="simulated", metadata={"help": "name of the model"})
    sim_gpu: str = field(default="h100", metadata={"help": "GPU in the catalogue"})
    sim_target: str = field(default="gemma-3-27b", metadata={"help": "target model"})
    sim_draft: str = field(default="gemma-3-4b", metadata={"help": "draft model, or none"})
    sim_precision: Precision = field(default="fp8", metadata={"help": "precision of the linear layers"})
    sim_gamma: int = field(default=4, metadata={"help": "number of tokens drafted in a step", "ge": 0, "le": 16})
    sim_adaptive: Literal["off", "on"] = field(
        default="off",
        metadata={
            "help": "choose the number of drafted tokens from load and acceptance, RAILBUS_SIM_GAMMA = the maximum"
        },
    )
    sim_alpha: float = field(
        default=0.8, metadata={"help": "probability that a drafted token is accepted", "ge": 0, "le": 1}
    )
    sim_batch: int = field(
        default=256, metadata={"help": "maximum number of concurrent answers", "ge": 1, "le": 10_000}
    )
    sim_prefill_budget: int = field(
        default=2_048, metadata={"help": "maximum number of prompt tokens in a step", "ge": 1, "le": 131_072}
    )
    sim_time_scale: float = field(
        default=1.0, metadata={"help": "factor on the time of a step", "ge": 0.001, "le": 1_000}
    )
    sim_script: str = field(default="", metadata={"help": "script of the answers, such as n50-die10"})
    sim_script_rate: float = field(
        default=1.0, metadata={"help": "share of the answers that follow the script", "ge": 0, "le": 1}
    )

    def cost_model(self) -> CostModel:
        """Return the cost model of the configured GPU and models.

        Raises:
            UserError: A name is not in the catalogue, or the model does not fit into the GPU's memory.
        """
        try:
            on, target = gpu(self.sim_gpu), model(self.sim_target)
            drafts = self.sim_draft != "none" and self.sim_gamma > 0
            draft = model(self.sim_draft) if drafts else target
            require_fit(target, on, self.sim_precision)
        except ValueError as error:
            raise UserError(f"RAILBUS_SIM_GPU, _TARGET, _DRAFT or _PRECISION: {error}") from None
        return CostModel(
            pair=SpeculationPair(
                target=target, draft=draft, gpu=on, precision=self.sim_precision, efficiency=practical(on)
            ),
            gamma=self.sim_gamma if drafts else 0,
            adaptive=self.sim_adaptive == "on",
            alpha=self.sim_alpha,
            batch=self.sim_batch,
            budget=self.sim_prefill_budget,
            scale=self.sim_time_scale,
        )

    def script(self) -> FaultScript:
        """Parse ``sim_script``.

        Raises:
            UserError: The script is invalid.
        """
        try:
            return parse_script(self.sim_script)
        except ValueError as error:
            raise UserError(f"RAILBUS_SIM_SCRIPT={self.sim_script!r}: {error}") from None
