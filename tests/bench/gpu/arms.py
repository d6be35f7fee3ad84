"""What is measured on a GPU, in the order of what is worth most if time runs out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

STAGES = ("install", "ceilings", "plain", "speculation", "runners", "kv", "schedule", "again", "report")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What every arm is given.

    Attributes:
        batches: Answers at once.
        prompt: Tokens of each prompt.
        tokens: Tokens of each answer.
        first: Tokens of the prompts whose first token is timed, one at a time.
    """

    batches: tuple[int, ...] = (1, 8, 32)
    prompt: int = 512
    tokens: int = 128
    first: tuple[int, ...] = (512, 1_024, 2_048, 4_096)


FULL = Load()
DRY = Load(batches=(1, 4), prompt=64, tokens=8, first=(32, 128))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One engine in a process of its own.

    Attributes:
        stage: The stage that runs it.
        model: ``target`` or ``draft``: which answers.
        gamma: Tokens that the draft model drafts for the target; 0 for none.
        alpha: Acceptance that is forced.
        runner: vLLM's model runner.
        kv: Type of the KV cache.
        schedule: Gamma by batch, such as ``1-20:2 21-128:1``.
        first: Whether first tokens are timed as well.
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
    """Yield each arm with the name of its run; ``again`` goes through plain and speculation backwards: A B B A."""
    for arm in ONCE:
        if arm.stage in stages and (fp8 or arm.kv != "fp8"):
            yield f"{arm.name}.1", arm
    if "again" in stages:
        for arm in reversed((*PLAIN, *SPECULATION)):
            yield f"{arm.name}.2", arm
