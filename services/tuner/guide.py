"""The items of a published guide to LLM latency: what the guide claims, and what is wrong with the claims."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from services.physics.statistics import Interval
from services.tuner.decide import Trial
from services.tuner.measurements import gains
from services.tuner.search import Search, Tried

State = Literal["ticked", "refuted", "unclear", "not tried"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideItem:
    """One item of the guide to LLM latency.

    Attributes:
        claim: Lowest and highest speed-up factor that the guide claims; None if it claims none.
        correction: What is wrong or missing in the guide; empty if nothing is.
        elsewhere: Why ``railbus tune`` cannot try the item; empty if it can.
    """

    key: str
    title: str
    claim: tuple[float, float] | None = None
    correction: str = ""
    elsewhere: str = ""


GUIDE: Final = (
    GuideItem(
        key="quantization", title="1. Quantization", claim=(2.0, 6.0),
        correction="INT8 is 2 times smaller than BF16, not 4: the guide counts from FP32. INT4 is seldom 4 to 6 times"
        " as fast: only decoding reads weights, and it also reads the KV cache and waits a fixed time a layer.",
    ),
    GuideItem(
        key="attention", title="2. Flash Attention 2", claim=(2.0, 3.0),
        correction="The claim is about the attention layers alone; of a short prompt they are a small part.",
    ),
    GuideItem(
        key="speculation", title="3. Speculative decoding", claim=(2.0, 3.0),
        correction="Where verifying a batch is bound by arithmetic it costs time. It never shortens the first token.",
    ),
    GuideItem(
        key="batching", title="4. Continuous batching", claim=(2.0, 10.0),
        correction="8 to 32 is no law: `railbus tune --find batch` measures where throughput stops growing here.",
    ),
    GuideItem(key="kv", title="5. KV cache optimisation", correction="Engines page the cache by themselves."),
    GuideItem(
        key="tensor-parallel", title="6. Tensor parallelism", claim=(0.7, 0.9),
        correction="The figure is the efficiency of each GPU, not a speed-up.",
        elsewhere="needs several GPUs: `railbus plan serve` compares the ways",
    ),
    GuideItem(
        key="pipeline-parallel", title="7. Pipeline parallelism", claim=(0.8, 0.95),
        correction="It raises throughput; one answer alone gets slower.",
        elsewhere="needs several GPUs: `railbus plan batch` compares the ways",
    ),
    GuideItem(
        key="prefix-cache", title="8. Prompt caching", claim=(10.0, 100.0),
        correction="Of the prefill of a repeated prefix. The whole answer gains what its prefill was.",
    ),
    GuideItem(key="compilation", title="9. Torch 2.0 compilation", claim=(1.2, 2.0)),
    GuideItem(key="onnx", title="10. ONNX Runtime", claim=(1.5, 3.0), elsewhere="no engine of Railbus uses it"),
    GuideItem(key="pinning", title="CPU pinning and threads"),
    GuideItem(key="host", title="Kernel parameters", elsewhere="see `railbus doctor --host`; to change it needs root"),
    GuideItem(key="gpu", title="GPU optimisation", elsewhere="see `railbus doctor --gpu`; to change it needs root"),
)  # fmt: skip

ITEMS: Final[Mapping[str, GuideItem]] = {item.key: item for item in GUIDE}

CV_CORRECTION: Final = (
    "A coefficient of variation below 0.1 % is no target: under random arrivals a server that always takes the same"
    " time has 51 % at half load. Between loads of one shape it says how steady the machine is, and so it is shown."
)

TAIL_CORRECTION: Final = (
    "1,000 requests leave ten above the p99: read it as such. An interval of p99 at 99 % confidence takes 262,742."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedItem:
    """An item of the guide with the result of the search.

    Attributes:
        state: ``ticked``: a change was kept. ``unclear``: no change was kept, but a measured change may gain more than
            the margin. ``refuted``: every measured change gains too little or has a disadvantage. ``not tried``: no
            change was measured.
        speed: Largest measured speed-up factor, with its confidence interval; None if no change was measured.
    """

    item: GuideItem
    state: State
    reason: str
    speed: Interval | None = None

    @property
    def within_claim(self) -> bool | None:
        """Whether the confidence interval ``speed`` overlaps the range of speed-ups that the guide claims.

        None if the guide gives no range, or if ``speed`` is None.
        """
        if self.item.claim is None or self.speed is None:
            return None
        low, high = self.item.claim
        return self.speed.high >= low and self.speed.low <= high


def check_guide(search: Search) -> list[CheckedItem]:
    return [_check(item, search) for item in GUIDE]


def _check(item: GuideItem, search: Search) -> CheckedItem:
    tried = [each for each in search.tried if each.trial.change.item == item.key]
    measured = [each for each in tried if each.decision.outcome != "failed"]
    if not tried:
        return CheckedItem(item=item, state="not tried", reason=item.elsewhere or _why_not(item, search))
    speeds = {each.trial.change.name: speed for each in measured if (speed := _speed(each.trial, search)) is not None}
    kept = [each for each in tried if each.decision.kept]
    if not speeds:
        return CheckedItem(item=item, state="not tried", reason=_names(tried))
    best = max(speeds, key=lambda name: speeds[name].value)
    state: State = "ticked" if kept else "unclear" if any(_is_open(each, search) for each in measured) else "refuted"
    return CheckedItem(item=item, state=state, reason=_names(kept or measured), speed=speeds[best])


def _is_open(tried: Tried, search: Search) -> bool:
    found = tried.decision.gains.get(search.rules.objective)
    return tried.decision.outcome == "no gain" and (found is None or found.high > search.rules.margin)


def _speed(trial: Trial, search: Search) -> Interval | None:
    found = gains(trial.rounds, [search.rules.objective], search.rules.confidence).get(search.rules.objective)
    if found is None:
        return None
    low, value, high = (1 / (1 - min(gain, 0.999)) for gain in (found.low, found.value, found.high))
    return Interval(value, low, high)


def _names(tried: Sequence[Tried]) -> str:
    return "; ".join(f"{each.trial.change.name}: {each.decision.reason}" for each in tried)


def _why_not(item: GuideItem, search: Search) -> str:
    skipped = search.skipped_items.get(item.key)
    return skipped or "this engine has no such setting, or nothing to change here"
