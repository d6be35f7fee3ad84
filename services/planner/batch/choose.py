"""Choose the fastest, the cheapest or the best way to run a batch job.

The best way is the one whose model has the highest quality score.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from services.planner.batch.ways import BatchJob, Way


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The choice of a way to run a batch job, by one criterion.

    Attributes:
        question: The criterion, such as ``fastest``.
        way: The chosen way; None if no way is suitable.
        why: An explanation for people.
    """

    question: str
    way: Way | None
    why: str


def pareto_front(ways: Iterable[Way]) -> list[Way]:
    """Return the Pareto front of time and cost, fastest way first."""
    found: list[Way] = []
    for way in sorted(ways, key=lambda each: (each.hours.value, each.money.value)):
        if not found or way.money.value < found[-1].money.value:
            found.append(way)
    return found


def good_enough(ways: Iterable[Way], job: BatchJob, wanted: float | None) -> list[Way]:
    """Return the ways with a quality score of at least ``wanted - job.quality_loss``; all if ``wanted`` is None."""
    if wanted is None:
        return list(ways)
    return [way for way in ways if way.score is not None and way.score >= wanted - job.quality_loss]


def answers(
    ways: Sequence[Way], *, within_h: float | None = None, budget: float | None = None
) -> tuple[BatchAnswer, ...]:
    """Choose the fastest way and the cheapest way to run the job.

    Args:
        ways: The ways to choose from.
        within_h: If given, also choose the cheapest way whose upper bound of ``hours`` is at most this value.
        budget: If given, also choose the way with the highest score among those whose upper bound of ``money`` is at
            most this value.
    """
    found = [
        _least("fastest", ways, lambda way: (way.hours.value, way.money.value), "h"),
        _least("cheapest", ways, lambda way: (way.money.value, way.hours.value), "$"),
    ]
    if within_h is not None:
        found.append(_within(ways, within_h))
    if budget is not None:
        found.append(_best(ways, budget))
    return tuple(found)


def _least(question: str, ways: Sequence[Way], key: Callable[[Way], tuple[float, float]], unit: str) -> BatchAnswer:
    ordered = sorted(ways, key=key)
    if not ordered:
        return BatchAnswer(question, None, "no way is good enough: raise --quality-loss")
    first = ordered[0]
    others = [way for way in ordered[1:] if _family(way) != _family(first)]
    if not others:
        return BatchAnswer(question, first, "there is no other kind of way")
    second = others[0]
    lead = f"the next other way is {second.name}: {hours_text(second.hours.value)}, {money_text(second.money.value)}"
    ours, theirs = (first.hours, second.hours) if unit == "h" else (first.money, second.money)
    if theirs.low <= ours.high:
        lead += "; their intervals overlap, so measure (--sample) before you rely on the order"
    return BatchAnswer(question, first, lead)


def _within(ways: Sequence[Way], within_h: float) -> BatchAnswer:
    question = f"cheapest within {hours_text(within_h)}"
    fitting = [way for way in ways if way.hours.high <= within_h]
    if fitting:
        chosen = min(fitting, key=lambda way: (way.money.value, way.hours.value))
        missed = [way for way in ways if way.hours.high > within_h and way.money.value < chosen.money.value]
        closest = min(missed, key=lambda way: way.hours.high, default=None)
        why = f"at most {hours_text(chosen.hours.high)}"
        if closest is not None:
            why += f"; {closest.name} costs less, {money_text(closest.money.value)}, "
            why += f"but may take {hours_text(closest.hours.high)}"
        return BatchAnswer(question, chosen, why)
    if not ways:
        return BatchAnswer(question, None, "no way is good enough: raise --quality-loss")
    nearest = min(ways, key=lambda way: way.hours.high)
    return BatchAnswer(question, None, f"none is sure to; the nearest, {nearest.name}, may take {_span(nearest)}")


def _best(ways: Sequence[Way], budget: float) -> BatchAnswer:
    question = f"best within {money_text(budget)}"
    fitting = [way for way in ways if way.money.high <= budget and way.score is not None]
    if fitting:
        chosen = max(fitting, key=lambda way: (way.score or 0.0, -way.hours.value))
        return BatchAnswer(question, chosen, f"score {chosen.score:.1f}, at most {money_text(chosen.money.high)}")
    cheapest = min(ways, key=lambda way: way.money.high, default=None)
    if cheapest is None:
        return BatchAnswer(question, None, "no way is good enough: raise --quality-loss")
    costs = money_text(cheapest.money.high)
    return BatchAnswer(question, None, f"none with a known score; the cheapest, {cheapest.name}, may cost {costs}")


def _family(way: Way) -> str:
    return way.name.split(",")[0].split(" x ")[-1]


def _span(way: Way) -> str:
    return f"{hours_text(way.hours.low)} to {hours_text(way.hours.high)}"


def hours_text(hours: float) -> str:
    if hours < 2 / 60:
        return f"{hours * 3_600:.0f} s"
    if hours < 2:
        return f"{hours * 60:.0f} min"
    return f"{hours:.1f} h" if hours < 72 else f"{hours / 24:.1f} d"


def money_text(money: float) -> str:
    if 0 < money < 0.1:
        return f"${money:.2g}"
    return f"${money:,.2f}" if money < 100 else f"${money:,.0f}"
