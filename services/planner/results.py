"""What ``railbus bench engine`` writes: read, checked, refused where runs cannot be compared."""

from pathlib import Path
from typing import Final

import msgspec

from services.runtime.errors import UserError

VERSION: Final = 1
MAX_BYTES: Final = 256 * 2**20

PLAIN: Final = "plain"


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class Drafting(msgspec.Struct, frozen=True):
    """What drafting did in one request."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: tuple[int, ...] = ()


class Asked(msgspec.Struct, frozen=True):
    """One request; milliseconds since it was due."""

    due_ms: float
    steps: tuple[tuple[float, int], ...]
    total_ms: float
    usage: Usage | None = None
    speculation: Drafting | None = None
    error: str | None = None

    @property
    def tokens(self) -> int:
        """Of the answer."""
        return sum(tokens for _, tokens in self.steps)

    @property
    def answered(self) -> bool:
        """It ended as it should, with something in it."""
        return self.error is None and bool(self.steps)

    @property
    def ttft_ms(self) -> float:
        """To the first token."""
        return self.steps[0][0]

    @property
    def token_ms(self) -> float | None:
        """Between tokens, on average; None for a single step."""
        after = self.tokens - self.steps[0][1]
        return (self.steps[-1][0] - self.steps[0][0]) / after if after else None


class Set(msgspec.Struct, frozen=True):
    """Requests that were asked together; ``cores`` is what the engine's processes had of the processors meanwhile."""

    requests: tuple[Asked, ...]
    cores: float | None = None


class Cell(msgspec.Struct, frozen=True):
    """A closed loop."""

    batch: int
    prompt: int
    sets: tuple[Set, ...]


class Stream(msgspec.Struct, frozen=True):
    """An open loop."""

    cache: str
    rate: float
    prompt: int
    requests: tuple[Asked, ...]


class Measured(msgspec.Struct, frozen=True):
    """What one process measured."""

    engine: str
    model: str
    ready_s: float
    settings: dict[str, str]
    machine: dict[str, str | int | None]
    cells: tuple[Cell, ...]
    streams: tuple[Stream, ...]
    cut: bool
    wall_s: float
    cpu_s: float | None
    others_s: float | None
    memory_mib: float | None
    gpu_mib: float | None


class Run(msgspec.Struct, frozen=True):
    """One arm, once."""

    arm: str
    measured: Measured


class Arm(msgspec.Struct, frozen=True):
    """What is compared.

    Attributes:
        gamma: Tokens drafted a step as asked for; 0 for the plain arm.
        env: The settings in which it differs.
    """

    gamma: int
    env: dict[str, str]


class Result(msgspec.Struct, frozen=True):
    """A whole bench.

    Attributes:
        version: Of this format.
        workload: What every run did.
        arms: By name; ``plain`` is one of them.
        runs: In the order in which they ran.
        catalogue: Names of accelerator, target, draft and precision, for the prediction.
    """

    version: int
    workload: dict[str, msgspec.Raw]
    arms: dict[str, Arm]
    runs: tuple[Run, ...]
    catalogue: dict[str, str]

    def of(self, arm: str) -> list[Measured]:
        """Every run of an arm."""
        return [run.measured for run in self.runs if run.arm == arm]


def read(path: Path) -> Result:
    """The result in a file.

    Raises:
        UserError: It is none, or its runs did not run under the same settings.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path}: more than {MAX_BYTES // 2**20} MiB, which no bench writes")
        result = msgspec.json.decode(path.read_bytes(), type=Result)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); `railbus bench engine --out` writes one") from None
    except msgspec.DecodeError as error:
        raise UserError(f"{path}: is no result of `railbus bench engine`: {error}") from None
    if result.version != VERSION:
        raise UserError(f"{path}: format {result.version}, this program reads {VERSION}: measure again")
    refuse_unlike_runs(result, str(path))
    return result


def refuse_unlike_runs(result: Result, name: str) -> None:
    """Comparing needs one engine, model, machine and workload; arms differ in what they say they differ in.

    Raises:
        UserError: Something else differs, an arm did not run, or there is no plain arm.
    """
    if PLAIN not in result.arms or any(not result.of(arm) for arm in result.arms):
        raise UserError(f"{name}: every arm must have run, and one must be called {PLAIN!r}")
    strange = {run.arm for run in result.runs} - set(result.arms)
    if strange:
        raise UserError(f"{name}: runs of {', '.join(sorted(strange))}, which is no arm")
    own = {key for arm in result.arms.values() for key in arm.env}
    first = _conditions(result.runs[0].measured, own)
    for run in result.runs[1:]:
        differing = unlike(first, _conditions(run.measured, own))
        if differing:
            raise UserError(f"{name}: runs of different {', '.join(differing)} cannot be compared: measure again")
    for run in result.runs:
        for key, value in result.arms[run.arm].env.items():
            if run.measured.settings.get(key, "") != value:
                raise UserError(f"{name}: a run of {run.arm} had another {key} than its arm: measure again")


def refuse_unlike_results(first: Result, second: Result) -> None:
    """Two benches can be compared when they did the same on the same machine.

    Raises:
        UserError: They did not; the message names what differs.
    """
    own = {key for result in (first, second) for arm in result.arms.values() for key in arm.env}
    mine, other = (
        {f"workload {key}": bytes(value) for key, value in result.workload.items()}
        | _conditions(result.runs[0].measured, own)
        | {"arms": tuple(sorted(result.arms))}
        for result in (first, second)
    )
    differing = unlike(mine, other)
    if differing:
        raise UserError(f"results of different {', '.join(differing)} cannot be compared")


def unlike(first: dict[str, object], second: dict[str, object]) -> list[str]:
    """What two sets of conditions differ in."""
    return sorted(key for key in first.keys() | second.keys() if first.get(key) != second.get(key))


def _conditions(measured: Measured, own: set[str]) -> dict[str, object]:
    fixed: dict[str, object] = {"engine": measured.engine, "model": measured.model, **measured.machine}
    return fixed | {key: value for key, value in measured.settings.items() if key not in own}
