"""One answer of vLLM on paper: its outputs become steps and an end. No I/O, no clock."""

from typing import Any, Final

from schemas.stream import FinishReason, Speculation, Timings, Usage
from services.worker.engine import Done, EngineError, Step

_ENDS: Final[dict[str, FinishReason]] = {"stop": "stop", "length": "length", "repetition": "stop"}


class Account:
    """What was said of one answer so far.

    vLLM tells exactly what was drafted and accepted when the answer is complete; of a single step it tells the tokens.
    A step after the first that has n tokens kept n - 1 drafts and added one; what it drafted is known when every step
    drafts the same. The last step carries what is missing, so that the steps add up to the totals, unless they said
    more already: outputs that came together, because nobody fetched them in time, count as one step.

    Args:
        prompt_tokens: Of the prompt.
        drafted: How much every step drafts, when that is known beforehand; else 0.
        speculative: Whether anything drafts.
    """

    __slots__ = ("_accepted", "_drafted", "_each", "_prompt_tokens", "_said", "_speculative")

    def __init__(self, prompt_tokens: int, *, drafted: int = 0, speculative: bool = False) -> None:
        self._prompt_tokens = prompt_tokens
        self._each = drafted
        self._speculative = speculative
        self._said = 0
        self._drafted = 0
        self._accepted = 0

    def step(self, output: Any) -> Step | None:
        """The step in a ``RequestOutput`` of kind delta; None when it has no token.

        Raises:
            EngineError: The answer ended in a way that is no end.
        """
        completion = output.outputs[0]
        if output.finished and completion.finish_reason not in _ENDS:
            raise EngineError(
                "unavailable", f"the engine ended the answer ({completion.finish_reason})", retryable=True
            )
        tokens = len(completion.token_ids)
        if not tokens and not completion.text:
            return None
        drafted, accepted = self._guess(tokens)
        self._said += tokens
        if output.finished and completion.spec_decode_metrics is not None:
            totals = totals_of(completion.spec_decode_metrics)
            drafted, accepted = max(0, totals.drafted - self._drafted), max(0, totals.accepted - self._accepted)
            drafted = max(drafted, accepted)
        self._drafted += drafted
        self._accepted += accepted
        return Step(text=completion.text, tokens=tokens, drafted=drafted, accepted=accepted)

    def done(self, output: Any) -> Done:
        """The end, from the ``RequestOutput`` that is finished."""
        completion = output.outputs[0]
        told = completion.spec_decode_metrics
        return Done(
            finish_reason=_ENDS[completion.finish_reason],
            usage=Usage(
                prompt_tokens=self._prompt_tokens,
                completion_tokens=self._said,
                cached_tokens=max(0, output.num_cached_tokens or 0),
            ),
            timings=timings_of(output.metrics),
            speculation=None if told is None else totals_of(told),
        )

    def _guess(self, tokens: int) -> tuple[int, int]:
        if not self._speculative or not self._said or not tokens:
            return 0, 0  # the first token comes from the prompt, nothing was drafted for it
        return max(self._each, tokens - 1), tokens - 1


def totals_of(told: Any) -> Speculation:
    """Totals from a ``RequestSpecDecodeMetrics``; entry j of its histogram counts the steps that kept j drafts."""
    histogram = list(told.histogram)
    return Speculation(
        steps=sum(histogram),
        drafted=told.num_draft_tokens,
        accepted=sum(kept * steps for kept, steps in enumerate(histogram)),
        accepted_by_position=tuple(sum(histogram[position:]) for position in range(1, min(len(histogram), 65))),
    )


def timings_of(told: Any) -> Timings:
    """Times from a ``RequestStateStats``, whose clock is monotonic; zero where an event did not happen."""
    if told is None:
        return Timings()
    return Timings(
        queue_ms=_between(told.queued_ts, told.scheduled_ts),
        prefill_ms=_between(told.scheduled_ts, told.first_token_ts),
        decode_ms=_between(told.first_token_ts, told.last_token_ts),
    )


def _between(earlier: float, later: float) -> float:
    return max(0.0, later - earlier) * 1e3 if earlier and later else 0.0
