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
        request_id: Id of the request. The simulated engine also uses it as a seed.
        run: Unique id of the execution.
        model: The model's name, as the engine's ``resolve`` returned it.
        messages: The conversation, oldest first.
        sampling: Sampling parameters.
        lane: If the engine has priorities, ``interactive`` jobs run before ``batch`` jobs.
        priority: Priority within the lane; 0 is the highest.
        expires_us: When the request must be closed, by ``steady_us``. An engine waits for nothing beyond this time.
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
        text: The generated text. It is empty while a character is incomplete; the next chunk then includes this step.
        tokens: Number of tokens generated.
        drafted: Number of tokens that the draft proposed.
        accepted: Number of proposed tokens that the target accepted.
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
    """The negative log-likelihood that a model gives to a text.

    Attributes:
        nats: Minus the natural logarithm of the probability of the text, summed over its tokens.
        tokens: Number of tokens that were scored.
    """

    nats: float
    tokens: int


class EngineError(Exception):
    """An execution failed. The message is for people and never contains prompt text.

    The error class ``engine_dead`` means that no execution of this process can succeed any more. The worker then fails
    all its requests and ends the process, so that its supervisor starts a new one.

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
    """Return the name of the one model that an engine serves.

    Raises:
        EngineError: The request names another model.
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
        running: Number of executions that have a slot.
        waiting: Number of executions that wait for a slot inside the engine.
    """

    running: int
    waiting: int = 0


class Engine(Protocol):
    """An engine that generates answers.

    Attributes:
        name: ``llama``, ``openai``, ``simulated`` ...
        model: The model that answers requests for ``default``.
        capacity: Maximum number of concurrent jobs. The worker never runs more jobs of one lane.
        preempts: Whether an interactive job that finds no free slot displaces a batch job inside the engine. If so, the
            worker starts interactive jobs as if no batch job were running.
    """

    name: str
    model: str
    capacity: int
    preempts: bool

    async def start(self) -> None:
        """Load the model or connect to it, so that ``generate`` can be called.

        Raises:
            UserError: The operator must change something; the message names the remedy.
        """

    def resolve(self, model: str) -> str:
        """Return the name of the model that will answer a request for ``model``.

        Raises:
            EngineError: This engine does not serve the model (``bad_request`` with the param ``model``).
        """

    def generate(self, job: Job) -> AsyncGenerator[EngineStep | GenerationResult, None]:
        """Yield steps, then a ``GenerationResult``.

        If the task that waits for a step is cancelled, or ``aclose()`` is called, the job is aborted within one token.
        After the ``GenerationResult``, the generator may take a moment (well below a second) to end. It keeps the job's
        slot until then.

        Raises:
            EngineError: The job failed.
        """

    def stats(self) -> EngineStats:
        """Return the current load."""

    async def close(self) -> None:
        """Abort all running jobs and free all resources."""


@runtime_checkable
class ScoringEngine(Protocol):
    """An engine that can compute the likelihood of a text. Only measurements of quality need this."""

    async def score(self, text: str) -> NegativeLogLikelihood | None:
        """Return the likelihood of a given text, without a chat template; None if the server does not support this.

        Raises:
            EngineError: The text could not be scored.
        """
