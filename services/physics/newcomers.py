"""Prompts that arrive together: how long each waits for its first token, and how long prefills delay its answer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from services.physics.catalogue.gpus import Gpu
from services.physics.catalogue.models import Model
from services.physics.catalogue.precisions import Precision
from services.physics.checks import whole
from services.physics.efficiency import Efficiency
from services.physics.roofline import prefill_ms

PREFILL_BUDGET: Final = 4_096
"""Prompt tokens of a step; it explains the first tokens of NIM's closed loops best. Servers take 2,048 to 16,384."""


@dataclass(frozen=True, slots=True)
class Burst:
    """``batch`` prompts that arrived together.

    Attributes:
        first_ms: Mean time until a prompt is prefilled.
        stall_ms: Mean time for which a sequence that decodes waits for the prefill of others, over its whole answer.
    """

    first_ms: float
    stall_ms: float


def burst(
    model: Model,
    gpu: Gpu,
    precision: Precision,
    *,
    batch: int,
    prompt: int,
    cached: int = 0,
    budget: int = PREFILL_BUDGET,
    efficiency: Efficiency,
) -> Burst:
    """Prefill the prompts in order, in steps of whole prompts within the budget (a longer prompt has its own step).

    Sequences whose prompts share a step stay together. Each time that another group's answers end, that group's next
    prompts are prefilled, so each answer waits once for every other group.
    """
    whole("batch", batch, least=1)
    spent, firsts, stalls = 0.0, 0.0, 0.0
    groups = list(_groups(batch, max(1, budget // (prompt - cached))))
    times = [
        prefill_ms(model, gpu, precision, prompt - cached, cached=cached, prompts=group, efficiency=efficiency)
        for group in groups
    ]
    for group, took in zip(groups, times, strict=True):
        spent += took
        firsts += group * spent
        stalls += group * (sum(times) - took)
    return Burst(firsts / batch, stalls / batch)


def _groups(batch: int, most: int) -> Iterator[int]:
    while batch > 0:
        yield min(batch, most)
        batch -= most
