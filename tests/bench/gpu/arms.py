"""The arms that are measured on a GPU. The most important arms come first, in case time runs out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

STAGES = ("install", "ceilings", "plain", "speculation", "runners", "kv", "schedule", "again", "report")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load on each arm's engine.

    Attributes:
        batches: Batch sizes to measure, as numbers of concurrent answers.
        prompt: Number of tokens of each prompt.
        tokens: Number of tokens of each answer.
        first: Prompt lengths, in tokens, at which the time to first token is measured, with one prompt at a time.
    """

    batches: tuple[int, ...] = (1, 8, 32)
    prompt: int = 512
    tokens: int = 128
    first: tuple[int, ...] = (512, 1_024, 2_048, 4_096)


FULL = Load()
DRY = Load(batches=(1, 4), prompt=64, tokens=8, first=(32, 128))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One engine with its settings, which is measured in its own process.

    Attributes:
        stage: Stage of the benchmark that measures this arm.
        model: The model that answers: ``target`` or ``draft``.
        gamma: Number of tokens that the draft model drafts in a step for the target model; 0 for no drafting.
        alpha: Probability with which vLLM is forced to accept a drafted token; not used for models with real weights.
        runner: Version of vLLM's model runner: ``v1`` or ``v2``.
        kv: Data type of the KV cache, as in vLLM's option ``kv_cache_dtype``.
        schedule: ``gamma`` by batch size. ``1-20:2 21-128:1`` drafts 2 tokens at batch sizes up to 20, then 1 token.
        first: Whether to measure the prompts in ``Load.first``, too.
    """

    stage: str
    model: str = "target"
    gamma: int = 0
    alpha: float = 0.8
    runner: str = "v1"
    kv: str = "auto"
    schedule: str = ""
    first: bool = False

    @property
    def name(self) -> str:
        parts = [self.model, self.runner]
        if self.gamma:
            parts += [f"gamma{self.gamma}", f"alpha{self.alpha:g}"]
        if self.kv != "auto":
            parts.append(f"kv-{self.kv}")
        if self.schedule:
            parts.append("by-batch")
        return "_".join(parts)


PLAIN = (Arm(stage="plain", first=True), Arm(stage="plain", model="draft"))
SPECULATION = tuple(
    Arm(stage="speculation", gamma=gamma, alpha=alpha)
    for alpha, gamma in ((0.8, 3), (0.7, 2), (0.8, 5), (0.7, 3), (0.6, 2))
)
RUNNERS = (Arm(stage="runners", runner="v2"), Arm(stage="runners", runner="v2", gamma=3))
KV = (Arm(stage="kv", kv="fp8"),)
SCHEDULE = (Arm(stage="schedule", gamma=2, alpha=0.7, schedule="1-20:2 21-128:1"),)
ONCE = (*PLAIN, *SPECULATION, *RUNNERS, *KV, *SCHEDULE)


def runs(stages: Sequence[str], *, fp8: bool = True) -> Iterator[tuple[str, Arm]]:
    """Yield the name and the arm of each run in the given stages.

    The stage ``again`` repeats the arms of ``plain`` and ``speculation`` in reverse order, so that both orders are
    measured (A B B A). If ``fp8`` is false, arms with an FP8 KV cache are left out.
    """
    for arm in ONCE:
        if arm.stage in stages and (fp8 or arm.kv != "fp8"):
            yield f"{arm.name}.1", arm
    if "again" in stages:
        for arm in reversed((*PLAIN, *SPECULATION)):
            yield f"{arm.name}.2", arm
