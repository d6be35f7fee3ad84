"""The interface between a worker and its engine."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

import msgspec

from schemas.requests import Lane, Message, Sampling
from schemas.stream import ErrorClass, FinishReason, Speculation, Timings, Usage

EngineName = Literal["llama", "openai", "simulated", "vllm"]
"""The engines that the generator can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What an engine must know to answer a request.

    Attributes:
        run: Id of the run.
        model: The model's name, as ``Engine.resolve`` returned it.
        messages: The conversation, oldest message first.
        lane: Lane of the request. Engines with priorities prefer ``interactive`` requests to ``batch`` requests.
        priority: Priority within the lane; 0 is the highest.
        expires_us: When the request's total deadline passes, in microseconds since the epoch.
    """

    request_id: str
    run: str
    model: str
    messages: tuple[Message, ...]
    sampling: Sampling
    lane: Lane = "interactive"
    priority: int = 0
    expires_us: int = 2**53


class EngineStep(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The output of one engine step for one answer.

    Attributes:
        text: The text that the step generated. It is empty if the step generated only a part of a character.
        tokens: Number of tokens that the step generated.
        drafted: Number of tokens that were proposed to the target model.
        accepted: Number of proposed tokens that the target model accepted.
        prompt_tokens: Number of tokens of the prompt, possibly an estimate; 0 if the engine does not report it in its
            steps. Used only if the answer fails, because a complete answer has it in ``GenerationResult.usage``.
    """

    text: str
    tokens: int = 1
    drafted: int = 0
    accepted: int = 0
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """The result at the end of a complete answer.

    Attributes:
        finish_reason: ``stop`` or ``length``.
        usage: Token counts.
        timings: Durations in milliseconds.
        speculation: Totals of speculative decoding; None if the engine does not use it or reports no totals.
    """

    finish_reason: FinishReason
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    speculation: Speculation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativeLogLikelihood:
    """The negative log-likelihood of a text under a model.

    Attributes:
        nats: The sum of ``-ln(p)`` over the scored tokens, where ``p`` is the probability of a token.
        tokens: Number of scored tokens.
    """

    nats: float
    tokens: int


class EngineError(Exception):
    """The engine could not answer a request. The message never contains prompt text.

    If ``error_class`` is ``engine_dead``, the worker's process ends.

    Attributes:
        error_class: The kind of failure.
        retryable: Whether another attempt could succeed.
        param: The field of the request that is wrong; None if no field is wrong.
    """

    def __init__(self, error_class: ErrorClass, message: str, *, retryable: bool, param: str | None = None) -> None:
        super().__init__(message)
        self.error_class: ErrorClass = error_class
        self.retryable = retryable
        self.param = param


def only_model(asked: str, served: str) -> str:
    """Return ``served``, the name of the only model that an engine serves.

    Raises:
        EngineError: ``asked`` is neither ``served`` nor ``default``.
    """
    if asked in {"default", served}:
        return served
    raise EngineError(
        "bad_request", f"this model is not served here; served is {served!r}", retryable=False, param="model"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """An engine's load.

    Attributes:
        running: Number of requests that have a slot.
        waiting: Number of requests that the engine has taken and that wait for one of its slots.
    """

    running: int
    waiting: int = 0


class Engine(Protocol):
    """An engine that generates answers.

    Attributes:
        name: Name of the engine, such as ``llama``.
        model: Name of the model that answers the requests whose model is ``default``.
        capacity: Maximum number of concurrent answers. If ``preempts`` is true, this is the maximum for each lane.
        preempts: Whether the engine pauses a batch answer if an interactive answer finds no free slot.
    """

    name: str
    model: str
    capacity: int
    preempts: bool

    async def start(self) -> None:
        """Load the model, or connect to its server. Return when ``generate`` can be called.

        Raises:
            UserError: The engine cannot start. The message says what the operator must change.
        """

    def resolve(self, model: str) -> str:
        """Return the name of the model that answers requests for ``model``.

        Raises:
            EngineError: The engine does not serve this model (error class ``bad_request``, param ``model``).
        """

    # After an abort, an engine generates at most one more token. An answer keeps its slot until its iterator ends.
    def generate(self, job: Job) -> AsyncGenerator[EngineStep | GenerationResult, None]:
        """Yield the steps of an answer, and then a ``GenerationResult``.

        To abort the answer, call ``aclose()`` on the iterator, or cancel the task that waits for a step.

        Raises:
            EngineError: The engine could not complete the answer.
        """

    def stats(self) -> EngineStats: ...

    async def close(self) -> None: ...


@runtime_checkable
class ScoringEngine(Protocol):
    """An engine that can compute the negative log-likelihood of a text. Only benchmarks use this protocol."""

    async def score(self, text: str) -> NegativeLogLikelihood | None:
        """Return the negative log-likelihood of a text. No chat template is applied to the text.

        Return None if the engine or its server cannot score this text.

        Raises:
            EngineError: The engine failed or refused the request, or its server could not be reached.
        """
