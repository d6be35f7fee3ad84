"""What the worker needs of an engine, and nothing more."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from schemas.requests import Lane, Message, Sampling
from schemas.stream import ErrorClass, FinishReason, Speculation, Timings, Usage

EngineName = Literal["llama", "openai", "simulated", "vllm"]
"""The generator's engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One execution of one attempt of a request.

    Attributes:
        request_id: The request; engines that draw at random seed themselves with it.
        run: Unique per execution.
        model: As the engine's ``resolve`` named it.
        messages: The conversation, oldest first.
        sampling: How tokens are drawn.
        lane: ``interactive`` goes before ``batch`` where the engine has priorities.
        expires_us: When the request must be closed, microseconds since the epoch: then nothing is worth waiting for.
    """

    request_id: str
    run: str
    model: str
    messages: tuple[Message, ...]
    sampling: Sampling
    lane: Lane = "interactive"
    expires_us: int = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one engine step said.

    Attributes:
        text: May be empty while a character is incomplete; the worker merges such steps into the next chunk.
        tokens: Tokens of the step.
        drafted: Tokens the draft proposed in it.
        accepted: Of those, accepted by the target.
    """

    text: str
    tokens: int = 1
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The execution came to its own end.

    Attributes:
        finish_reason: ``stop`` or ``length``.
        usage: Tokens.
        timings: Milliseconds.
        speculation: Drafting totals; None when speculation is off or the engine does not say.
    """

    finish_reason: FinishReason
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    speculation: Speculation | None = None


class EngineError(Exception):
    """An execution ended without an answer. The message is for people and never holds prompt text.

    ``engine_dead`` means that no execution of this process can succeed any more: the worker fails what is open and
    ends the process, so that its supervisor starts a new one.

    Attributes:
        error_class: What kind of failure.
        retryable: Whether another attempt could help.
        param: Which field of the request is at fault; None when none.
    """

    def __init__(self, error_class: ErrorClass, message: str, *, retryable: bool, param: str | None = None) -> None:
        super().__init__(message)
        self.error_class: ErrorClass = error_class
        self.retryable = retryable
        self.param = param


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A look inside.

    Attributes:
        running: Executions that hold a slot.
        waiting: Executions that wait for one inside the engine.
    """

    running: int
    waiting: int = 0


class Engine(Protocol):
    """Turns jobs into steps.

    Attributes:
        name: ``llama``, ``openai``, ``simulated`` ...
        model: The model that answers to ``default``.
        capacity: Most jobs at once; the worker never has more running.
    """

    name: str
    model: str
    capacity: int

    async def start(self) -> None:
        """Loads or connects, whatever makes ``generate`` work.

        Raises:
            UserError: Something is missing that a person can supply; the message names the remedy.
        """

    def resolve(self, model: str) -> str:
        """The name of the model that will answer a request for ``model``.

        Raises:
            EngineError: ``bad_request`` with the param ``model``: it is not served here.
        """

    def generate(self, job: Job) -> AsyncGenerator[Step | Done, None]:
        """Steps, then ``Done``. Cancelling the task that waits for a step, or ``aclose()``, aborts within one token.

        After ``Done`` the generator may take a moment (well below a second) to end: it holds its slot until then.

        Raises:
            EngineError: The job failed.
        """

    def stats(self) -> EngineStats:
        """How busy it is."""

    async def close(self) -> None:
        """Ends what still runs and frees everything."""
