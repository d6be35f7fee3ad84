"""The interface between a worker and its engine."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from schemas.requests import Lane, Message, Sampling
from schemas.stream import ErrorClass, FinishReason, Speculation, Timings, Usage

EngineName = Literal["llama", "openai", "simulated", "vllm"]
"""The engines that the generator can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One execution of a request on an engine.

    Attributes:
        request_id: Id of the request.
        run: Unique id of the execution.
        model: The model's name, as the engine's ``resolve`` returned it.
        messages: The conversation, oldest first.
        sampling: Sampling parameters.
        lane: If the engine has priorities, ``interactive`` jobs run before ``batch`` jobs.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStep:
    """The output of one engine step.

    Attributes:
        text: The generated text. It is empty while a character is incomplete.
        tokens: Number of tokens generated.
        drafted: Number of tokens that the draft model proposed.
        accepted: Number of proposed tokens that the target model accepted.
    """

    text: str
    tokens: int = 1
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """The result at the end of a complete answer.

    Attributes:
        finish_reason: ``stop`` or ``length``.
        usage: Token counts.
        timings: Durations in milliseconds.
        speculation: Totals of speculative decoding; None if it is off or the engine does not report them.
    """

    finish_reason: FinishReason
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    speculation: Speculation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativeLogLikelihood:
    """The negative log-likelihood of a text under a model.

    Attributes:
        nats: Sum over the tokens of minus the natural logarithm of each token's probability.
        tokens: Number of tokens that were scored.
    """

    nats: float
    tokens: int


class EngineError(Exception):
    """An execution failed. The message never contains prompt text.

    If the error class is ``engine_dead``, the engine can run no more jobs. The worker then fails all its requests and
    ends its process.

    Attributes:
        error_class: The kind of failure.
        retryable: Whether another attempt could succeed.
        param: The field of the request that is wrong; None if no field is.
    """

    def __init__(self, error_class: ErrorClass, message: str, *, retryable: bool, param: str | None = None) -> None:
        super().__init__(message)
        self.error_class: ErrorClass = error_class
        self.retryable = retryable
        self.param = param


def only_model(asked: str, served: str) -> str:
    """Return ``served``, the name of the only model that an engine serves.

    Raises:
        EngineError: ``asked`` is neither this name nor ``default``.
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
        running: Number of jobs that have a slot.
        waiting: Number of jobs that wait for a slot inside the engine.
    """

    running: int
    waiting: int = 0


class Engine(Protocol):
    """An engine that generates answers.

    Attributes:
        name: Name of the engine, such as ``llama``.
        model: The model that answers requests for ``default``.
        capacity: Maximum number of concurrent jobs. If ``preempts`` is true, this is the maximum in each lane.
        preempts: Whether an interactive job preempts a batch job if there is no free slot.
    """

    name: str
    model: str
    capacity: int
    preempts: bool

    async def start(self) -> None:
        """Load the model, or connect to it. Return when ``generate`` can be called.

        Raises:
            UserError: The operator must change something. The message says what.
        """

    def resolve(self, model: str) -> str:
        """Return the name of the model that answers requests for ``model``.

        Raises:
            EngineError: The engine does not serve this model (error class ``bad_request``, param ``model``).
        """

    def generate(self, job: Job) -> AsyncGenerator[EngineStep | GenerationResult, None]:
        """Yield the steps of an answer, and then a ``GenerationResult``.

        ``aclose()``, or cancellation of the task that waits for a step, aborts the job within one token. The generator
        may still run for a short time after its result, and uses the job's slot until it ends.

        Raises:
            EngineError: The job failed.
        """

    def stats(self) -> EngineStats: ...

    async def close(self) -> None: ...


@runtime_checkable
class ScoringEngine(Protocol):
    """An engine that can compute the likelihood of a text. Only benchmarks need this."""

    async def score(self, text: str) -> NegativeLogLikelihood | None:
        """Return the likelihood of a text; None if the engine cannot compute it. The chat template is not applied.

        Raises:
            EngineError: The text could not be scored.
        """
