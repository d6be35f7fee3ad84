"""Compute the delay that prompts cause each other when they arrive together."""

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
"""Maximum prompt tokens in a step. This value explains the times to the first token of NIM's closed loops best. Servers
use 2,048 to 16,384."""


@dataclass(frozen=True, slots=True)
class Burst:
    """The delays of prompts that arrive together.

    Attributes:
        first_ms: Mean time from the arrival of a prompt to the end of its prefill.
        stall_ms: Mean time for which an answer pauses during the prefill of other prompts.
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
    """Return the delays of ``batch`` prompts that arrive together.

    Each prompt has ``prompt`` tokens, and ``cached`` of them are in the KV cache. A step prefills as many whole prompts
    as fit into ``budget`` tokens, but at least one. Cached tokens do not count.
    """
    whole("batch", batch, least=1)
    # Sequences whose prompts share a step form a group and stay together. When the answers of a group end, the next
    # prompts of this group are prefilled. So each answer waits once for the prefill of every other group.
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
