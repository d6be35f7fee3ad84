"""The interface between the worker and an engine."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from schemas.requests import Lane, Message, Sampling
from schemas.stream import ErrorClass, FinishReason, Speculation, Timings, Usage

EngineName = Literal["llama", "openai", "simulated", "vllm"]
"""The engines that the generator can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One execution of one attempt of a request.

    Attributes:
        request_id: Also the seed of an engine that samples without one.
        run: Unique id of the execution.
        model: The name that the engine's ``resolve`` returned.
        messages: The conversation, oldest first.
        sampling: Sampling parameters.
        lane: ``interactive`` goes before ``batch`` where the engine has priorities.
        priority: Within the lane; 0 goes first.
        expires_us: When the request must be closed, by ``steady_us``. No job waits longer.
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
        text: May be empty while a character is incomplete; the worker merges such steps into the next chunk.
        tokens: Tokens generated.
        drafted: Tokens that the draft proposed.
        accepted: Drafted tokens that the target accepted.
    """

    text: str
    tokens: int = 1
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """The end of a complete answer.

    Attributes:
        finish_reason: ``stop`` or ``length``.
        usage: Token counts.
        timings: Durations in milliseconds.
        speculation: Drafting totals; None when speculation is off or the engine does not report them.
    """

    finish_reason: FinishReason
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    speculation: Speculation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativeLogLikelihood:
    """The negative log-likelihood that a model gives to a text.

    Attributes:
        nats: Minus the logarithm of the probability of its tokens, each after those before it.
        tokens: Tokens that were scored.
    """

    nats: float
    tokens: int


class EngineError(Exception):
    """An execution failed. The message is for people and never contains prompt text.

    ``engine_dead`` means that no execution of this process can succeed any more: the worker fails all open requests and
    ends the process, so that its supervisor starts a new one.

    Attributes:
        error_class: The kind of failure.
        retryable: Whether another attempt could succeed.
        param: The field of the request that is wrong; None for none.
    """

    def __init__(self, error_class: ErrorClass, message: str, *, retryable: bool, param: str | None = None) -> None:
        super().__init__(message)
        self.error_class: ErrorClass = error_class
        self.retryable = retryable
        self.param = param


def only_model(asked: str, served: str) -> str:
    """Return the name of the one model that an engine serves.

    Raises:
        EngineError: Another one is asked for.
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
        running: Executions that hold a slot.
        waiting: Executions that wait for a slot inside the engine.
    """

    running: int
    waiting: int = 0


class Engine(Protocol):
    """An engine that generates answers.

    Attributes:
        name: ``llama``, ``openai``, ``simulated`` ...
        model: The model that answers requests for ``default``.
        capacity: Maximum number of concurrent jobs; the worker never runs more of one lane.
        preempts: Whether an interactive job that finds no room displaces one of the batch lane inside the engine. The
            worker then starts interactive jobs as if no batch job ran.
    """

    name: str
    model: str
    capacity: int
    preempts: bool

    async def start(self) -> None:
        """Load the model or connect to it; ``generate`` works afterwards.

        Raises:
            UserError: The operator must change something; the message names the remedy.
        """

    def resolve(self, model: str) -> str:
        """Return the name of the model that will answer a request for ``model``.

        Raises:
            EngineError: ``bad_request`` with the param ``model``: this engine does not serve it.
        """

    def generate(self, job: Job) -> AsyncGenerator[EngineStep | GenerationResult, None]:
        """Yield steps, then a ``GenerationResult``.

        Cancelling the task that waits for a step, or ``aclose()``, aborts within one token. After ``GenerationResult``
        the generator may take a moment (well below a second) to end: it holds its slot until then.

        Raises:
            EngineError: The job failed.
        """

    def stats(self) -> EngineStats:
        """Return the current load."""

    async def close(self) -> None:
        """Abort what still runs and free all resources."""


@runtime_checkable
class ScoringEngine(Protocol):
    """An engine that gives log-probabilities. Only measurements of quality need them."""

    async def score(self, text: str) -> NegativeLogLikelihood | None:
        """Score a text that nobody asked for, without a chat template; None where the server gives none.

        Raises:
            EngineError: The text could not be scored.
        """
