"""Decide whether a measured change is kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from services.physics.statistics import Interval
from services.tuner.experiment import METRICS, Metric, Rules, SettingsChange, Size
from services.tuner.measurements import Load, Round, failed, gain, gains, values
from services.tuner.quality.compare import Quality

GUARD_CONFIDENCE: Final = 0.8
"""Confidence of the intervals of guarded metrics. It is lower than the confidence for a gain, so that weaker evidence
is enough to refuse a change."""

Outcome = Literal["kept", "no gain", "worse", "quality", "price", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One change, measured in comparison with the settings ``base``.

    Attributes:
        quality: Effect of the change on the quality of answers; None if this effect was not measured.
        quality_error: Why an engine failed while ``quality`` was measured; empty if no engine failed.
        error: Why the change could not be measured; empty if it was measured.
    """

    change: SettingsChange
    base: Mapping[str, str]
    size: Size
    rounds: tuple[Round, ...] = ()
    quality: Quality | None = None
    quality_error: str = ""
    error: str = ""

    @property
    def before(self) -> list[Load]:
        return [load for each in self.rounds for load in each.before]

    @property
    def after(self) -> list[Load]:
        return [load for each in self.rounds for load in each.after]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision about a change.

    Attributes:
        outcome: ``kept``, or why the change was not kept.
    """

    outcome: Outcome
    reason: str
    gains: Mapping[Metric, Interval] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        return self.outcome == "kept"


def gain_is_shown(rounds: Sequence[Round], rules: Rules) -> bool:
    """Return whether the whole confidence interval of the gain in ``rules.objective`` is above ``rules.margin``."""
    found = gain(rounds, rules.objective, rules.confidence)
    return found is not None and found.low > rules.margin


def decide(trial: Trial, rules: Rules) -> Decision:
    if trial.error:
        return Decision(outcome="failed", reason=trial.error)
    found = gains(trial.rounds, METRICS, rules.confidence)
    lost = failed(trial.after) - failed(trial.before)
    if lost > 0:
        return Decision(outcome="failed", reason=f"{lost} more requests failed than without it", gains=found)
    main = found.get(rules.objective)
    if main is None:
        return Decision(outcome="failed", reason=f"{rules.objective} could not be measured", gains=found)
    said = f"{METRICS[rules.objective]}: {percent(main)}"
    if main.high < -rules.margin:
        return Decision(outcome="worse", reason=f"{said}: it is worse", gains=found)
    if main.low <= rules.margin:
        about = "no gain is shown" if main.low <= 0 else f"less than the margin of {rules.margin:.0%} is shown"
        return Decision(outcome="no gain", reason=f"{said}: {about}", gains=found)
    price, accepted = _prices(trial, rules)
    if price:
        return Decision(outcome="price", reason=f"{said}, but {price}", gains=found)
    objection = "" if trial.quality is None else trial.quality.objection(lossy=trial.change.lossy, rules=rules)
    if trial.quality_error:
        objection = f"an engine failed when answers were compared: {trial.quality_error}"
    elif trial.change.lossy and trial.quality is None:
        objection = "what it does to answers could not be measured"
    if objection:
        return Decision(outcome="quality", reason=f"{said}, but {objection}", gains=found)
    return Decision(outcome="kept", reason="; ".join([said, *accepted]), gains=found)


def percent(interval: Interval) -> str:
    if interval.low == float("-inf"):
        return f"{interval.value:+.1%} (one round has no interval)"
    return f"{interval.value:+.1%} ({interval.low:+.1%} to {interval.high:+.1%})"


def _prices(trial: Trial, rules: Rules) -> tuple[str, list[str]]:
    limits = {each.metric: each for each in rules.accepted}
    after, accepted = values(trial.after), []
    for metric, interval in gains(trial.rounds, rules.guards, GUARD_CONFIDENCE).items():
        if metric == rules.objective or interval.high >= -rules.guards[metric]:
            continue
        worse = f"{METRICS[metric]} gets worse: {percent(interval)}"
        if (limit := limits.get(metric)) is None or not limit.is_met(after):
            return worse, []
        accepted.append(f"{worse}, and is {after[metric]:.3g}, within the accepted {limit.value:g}")
    return "", accepted
