"""Convert vLLM's outputs for one answer into engine steps and a result."""

from typing import Any, Final

from schemas.stream import FinishReason, Speculation, Timings, Usage
from services.worker.engine import EngineError, EngineStep, GenerationResult

_ENDS: Final[dict[str, FinishReason]] = {"stop": "stop", "length": "length", "repetition": "stop"}


class OutputParser:
    """Converts vLLM's outputs for one answer into engine steps and a result.

    vLLM reports drafted and accepted tokens only as totals of an answer. So their numbers in each step are estimates.

    Args:
        prompt_tokens: Number of tokens of the prompt.
        drafted: Number of tokens that every step drafts; 0 if the number varies.
        speculative: Whether speculation is on.
    """

    __slots__ = ("_accepted", "_draft_length", "_drafted", "_prompt_tokens", "_speculative", "_tokens")

    def __init__(self, prompt_tokens: int, *, drafted: int = 0, speculative: bool = False) -> None:
        self._prompt_tokens = prompt_tokens
        self._draft_length = drafted
        self._speculative = speculative
        self._tokens = 0
        self._drafted = 0
        self._accepted = 0

    def step(self, output: Any) -> EngineStep | None:
        """Convert a vLLM ``RequestOutput`` to an engine step. Return None if the output has neither token nor text.

        Raises:
            EngineError: The finish reason means that the answer is incomplete.
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
        self._tokens += tokens
        if output.finished and completion.spec_decode_metrics is not None:
            # vLLM reports the numbers of drafted and accepted tokens only as totals of the whole answer. The last step
            # gets the difference from the sums of the earlier steps. It is negative if outputs were read late, because
            # vLLM merges outputs that wait to be read.
            totals = speculation_totals(completion.spec_decode_metrics)
            drafted, accepted = max(0, totals.drafted - self._drafted), max(0, totals.accepted - self._accepted)
            drafted = max(drafted, accepted)
        self._drafted += drafted
        self._accepted += accepted
        return EngineStep(text=completion.text, tokens=tokens, drafted=drafted, accepted=accepted)

    def done(self, output: Any) -> GenerationResult:
        completion = output.outputs[0]
        totals = completion.spec_decode_metrics
        return GenerationResult(
            finish_reason=_ENDS[completion.finish_reason],
            usage=Usage(
                prompt_tokens=self._prompt_tokens,
                completion_tokens=self._tokens,
                cached_tokens=max(0, output.num_cached_tokens or 0),
            ),
            timings=timings_of(output.metrics),
            speculation=None if totals is None else speculation_totals(totals),
        )

    def _guess(self, tokens: int) -> tuple[int, int]:
        if not self._speculative or not self._tokens or not tokens:
            return 0, 0  # the first token comes from the prefill, without drafts
        # Of the n tokens of a step, n - 1 were drafted and accepted.
        return max(self._draft_length, tokens - 1), tokens - 1


def speculation_totals(metrics: Any) -> Speculation:
    # Entry j is the number of steps in which j drafted tokens were accepted.
    histogram = list(metrics.histogram)
    return Speculation(
        steps=sum(histogram),
        drafted=metrics.num_draft_tokens,
        accepted=sum(accepted * steps for accepted, steps in enumerate(histogram)),
        accepted_by_position=tuple(sum(histogram[position:]) for position in range(1, min(len(histogram), 65))),
    )


def timings_of(stats: Any) -> Timings:
    """Convert vLLM's ``RequestStateStats``. A duration is 0 if its start or end is missing."""
    if stats is None:
        return Timings()
    return Timings(
        queue_ms=_between(stats.queued_ts, stats.scheduled_ts),
        prefill_ms=_between(stats.scheduled_ts, stats.first_token_ts),
        decode_ms=_between(stats.first_token_ts, stats.last_token_ts),
    )


def _between(earlier: float, later: float) -> float:
    return max(0.0, later - earlier) * 1e3 if earlier and later else 0.0
