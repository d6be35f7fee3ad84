"""Compare the answers of two engines: equal texts, perplexity, solved tasks."""

import math
from collections.abc import Sequence

import msgspec

from services.physics.statistics import Interval
from services.tuner.experiment import Rules
from services.tuner.quality.tasks import is_solved
from services.tuner.statistics import mean_interval, paired_difference, wilson

CONFIDENCE = 0.95


class TextScore(msgspec.Struct, frozen=True):
    """The probability that an engine gives to a text.

    Attributes:
        nats: Negative natural logarithm of the probability.
        tokens: Number of tokens of the text.
    """

    nats: float
    tokens: int


class Answers(msgspec.Struct, frozen=True):
    """One engine's answers at temperature 0.

    Attributes:
        texts: The answer to each task; None if the request failed.
        scores: The score of each text. The whole field is None if the engine reports no log-probabilities.
    """

    texts: tuple[str | None, ...]
    scores: tuple[TextScore, ...] | None = None


class Quality(msgspec.Struct, frozen=True):
    """Comparison of the answers with and without a change. An ``Interval`` is a confidence interval.

    Attributes:
        identical: Share of tasks whose answer the change did not alter.
        baseline_identical: Share of tasks with the same answer in two runs without the change. It is below 1 if chance
            alone alters answers.
        fewer_identical: ``baseline_identical`` minus ``identical``; above 0 if the change alters more answers than
            chance does.
        first_divergence: Median position of the first altered character; None if no answer is altered.
        loss: Share of tasks solved without the change minus the share solved with it.
        perplexity_before: None if the engine reports no log-probabilities.
        perplexity_after: None if the engine reports no log-probabilities.
        perplexity_rise: Relative rise of the perplexity; None if the engine reports no log-probabilities.
    """

    identical: Interval
    baseline_identical: Interval
    fewer_identical: Interval
    first_divergence: float | None
    solved_before: float
    solved_after: float
    loss: Interval
    prompts: int
    perplexity_before: float | None = None
    perplexity_after: float | None = None
    perplexity_rise: Interval | None = None

    def objection(self, *, lossy: bool, rules: Rules) -> str:
        """Return why the engine's answers forbid the change; empty if they do not forbid it.

        A change that is said to be lossless is accepted, unless ``fewer_identical`` shows that it alters more answers
        than chance does. In that case it is judged like a lossy change.

        A lossy change is refused if the engine solves significantly fewer tasks with it. It is also refused if the
        upper bound of ``perplexity_rise`` exceeds ``rules.max_loss``. If the perplexity is not known, the upper bound
        of ``loss`` is used instead.
        """
        if not lossy and self.fewer_identical.low <= 0:
            return ""
        said = "" if lossy else f"answers differ ({self.identical.value:.0%} equal), though it is said to be lossless; "
        if self.loss.low > 0:
            return f"{said}it solves fewer tasks: {self._loss()}"
        if self.perplexity_rise is not None:
            if self.perplexity_rise.high > rules.max_loss:
                return f"{said}perplexity rises by {_share(self.perplexity_rise)}, {rules.max_loss:.1%} may be lost"
            return ""
        if self.loss.high > rules.max_loss:
            return f"{said}{self._loss()}: more than {rules.max_loss:.1%} may be lost, and there is no perplexity"
        return ""

    def _loss(self) -> str:
        return f"{_share(self.loss)} of {self.prompts} tasks lost"


def compare(before: Answers, again: Answers, after: Answers, answers: Sequence[str]) -> Quality:
    """Compare an engine's answers without and with a change of its settings.

    Args:
        before: Answers without the change.
        again: Answers of a second process without the change. They show how much answers vary by chance.
        after: Answers with the change.
        answers: The right answer to each task.
    """
    self_equal = [a is not None and a == b for a, b in zip(before.texts, again.texts, strict=True)]
    equal = [a is not None and a == b for a, b in zip(before.texts, after.texts, strict=True)]
    parted = sorted(
        first_difference(a or "", b or "") for a, b in zip(before.texts, after.texts, strict=True) if a != b
    )
    right_before = [is_solved(text, answer) for text, answer in zip(before.texts, answers, strict=True)]
    right_after = [is_solved(text, answer) for text, answer in zip(after.texts, answers, strict=True)]
    count = len(answers)
    return Quality(
        identical=wilson(sum(equal), count, CONFIDENCE),
        baseline_identical=wilson(sum(self_equal), count, CONFIDENCE),
        fewer_identical=paired_difference(self_equal, equal, CONFIDENCE),
        first_divergence=parted[len(parted) // 2] if parted else None,
        solved_before=sum(right_before) / count,
        solved_after=sum(right_after) / count,
        loss=paired_difference(right_before, right_after, CONFIDENCE),
        prompts=count,
        perplexity_before=perplexity(before.scores),
        perplexity_after=perplexity(after.scores),
        perplexity_rise=perplexity_rise(before.scores, after.scores),
    )


def first_difference(first: str, second: str) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def perplexity(scores: Sequence[TextScore] | None) -> float | None:
    tokens = sum(each.tokens for each in scores or ())
    return math.exp(sum(each.nats for each in scores or ()) / tokens) if tokens else None


def perplexity_rise(before: Sequence[TextScore] | None, after: Sequence[TextScore] | None) -> Interval | None:
    if not before or not after:
        return None
    # Both scores are divided by the number of tokens in ``before``, because the change may alter the tokenizer.
    logs = [(b.nats - a.nats) / a.tokens for a, b in zip(before, after, strict=True) if a.tokens]
    found = mean_interval(logs, CONFIDENCE)
    return Interval(*(math.exp(min(end, 50.0)) - 1 for end in (found.value, found.low, found.high)))


def _share(interval: Interval) -> str:
    return f"{interval.value:+.1%} ({interval.low:+.1%} to {interval.high:+.1%})"
