"""Read result files of ``railbus bench engine``, and refuse runs that cannot be compared."""

from pathlib import Path
from typing import Final

import msgspec

from services.runtime.errors import UserError
from services.runtime.settings import without_secrets

VERSION: Final = 1
MAX_BYTES: Final = 256 * 2**20

PLAIN: Final = "plain"


class TokenCounts(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class DraftCounts(msgspec.Struct, frozen=True):
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: tuple[int, ...] = ()


class RequestResult(msgspec.Struct, frozen=True):
    """One request of a bench. All times are in milliseconds.

    Attributes:
        due_ms: Planned start of the request, counted from the start of the open loop or sample that it belongs to.
            Always 0 in a ``RepetitionResult``, because all its requests start at the same time.
        steps: For each received piece of the answer: the time from ``due_ms`` to its receipt, and its number of tokens.
        total_ms: Time from ``due_ms`` to the end of the answer.
    """

    due_ms: float
    steps: tuple[tuple[float, int], ...]
    total_ms: float
    usage: TokenCounts | None = None
    speculation: DraftCounts | None = None
    error: str | None = None

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.steps)

    @property
    def answered(self) -> bool:
        return self.error is None and bool(self.steps)

    @property
    def ttft_ms(self) -> float:
        return self.steps[0][0]

    @property
    def token_ms(self) -> float | None:
        """Mean time between tokens; None if all tokens came at once."""
        after = self.tokens - self.steps[0][1]
        return (self.steps[-1][0] - self.steps[0][0]) / after if after else None


class RepetitionResult(msgspec.Struct, frozen=True):
    """One repetition of a closed loop. ``cores`` is the mean number of CPU cores that the engine used."""

    requests: tuple[RequestResult, ...]
    cores: float | None = None


class ClosedLoopResult(msgspec.Struct, frozen=True):
    """The measurements with a fixed number of concurrent requests (``batch``). ``sets`` has one item per repetition."""

    batch: int
    prompt: int
    sets: tuple[RepetitionResult, ...]


class OpenLoopResult(msgspec.Struct, frozen=True):
    """The measurements with requests that arrive at a given rate."""

    cache: str
    rate: float
    prompt: int
    requests: tuple[RequestResult, ...]


class SampleResult(msgspec.Struct, frozen=True):
    at_once: int
    output: int
    requests: tuple[RequestResult, ...]


class RunMeasurements(msgspec.Struct, frozen=True):
    engine: str
    model: str
    ready_s: float
    settings: dict[str, str]
    machine: dict[str, str | int | None]
    cells: tuple[ClosedLoopResult, ...]
    streams: tuple[OpenLoopResult, ...]
    cut: bool
    wall_s: float
    cpu_s: float | None
    others_s: float | None
    memory_mib: float | None
    gpu_mib: float | None
    samples: tuple[SampleResult, ...] = ()


class ArmRun(msgspec.Struct, frozen=True):
    arm: str
    measured: RunMeasurements


class ArmSettings(msgspec.Struct, frozen=True):
    """The settings of an arm.

    Attributes:
        gamma: Number of tokens to draft per step; 0 without speculative decoding.
        env: Environment variables by which the arm differs from other arms.
    """

    gamma: int
    env: dict[str, str]


class BenchResult(msgspec.Struct, frozen=True):
    """The result of a bench.

    Attributes:
        version: Version of the file format.
        workload: The requests to send, which are the same in every run.
        arms: The compared variants of settings, by name. The baseline is called ``plain``.
        runs: The runs in chronological order.
        catalogue: Facts about the engine for predictions, such as the names of the accelerator and the target model.
            Empty if one of these two names is unknown.
    """

    version: int
    workload: dict[str, msgspec.Raw]
    arms: dict[str, ArmSettings]
    runs: tuple[ArmRun, ...]
    catalogue: dict[str, str]

    def of(self, arm: str) -> list[RunMeasurements]:
        return [run.measured for run in self.runs if run.arm == arm]


def read_result(path: Path) -> BenchResult:
    """Read a result file.

    Raises:
        UserError: The file is not a valid result, or its runs cannot be compared.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path}: more than {MAX_BYTES // 2**20} MiB, which no bench writes")
        result = msgspec.json.decode(path.read_bytes(), type=BenchResult)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); `railbus bench engine --out` writes one") from None
    except msgspec.DecodeError as error:
        raise UserError(f"{path}: is not a result of `railbus bench engine`: {error}") from None
    if result.version != VERSION:
        raise UserError(f"{path}: format {result.version}, this program reads {VERSION}: measure again")
    require_comparable_runs(result, str(path))
    return result


def require_comparable_runs(result: BenchResult, name: str) -> None:
    """Require that all runs had the same engine, model, machine and settings, except for the settings of their arms.

    Raises:
        UserError: The runs cannot be compared, an arm has no run, or there is no arm ``plain``.
    """
    if PLAIN not in result.arms or any(not result.of(arm) for arm in result.arms):
        raise UserError(f"{name}: every arm must have run, and one must be called {PLAIN!r}")
    unknown = {run.arm for run in result.runs} - set(result.arms)
    if unknown:
        raise UserError(f"{name}: the file has runs of {', '.join(sorted(unknown))} but no such arm")
    own = {key for arm in result.arms.values() for key in arm.env}
    first = _conditions(result.runs[0].measured, own)
    for run in result.runs[1:]:
        differing = differing_conditions(first, _conditions(run.measured, own))
        if differing:
            raise UserError(f"{name}: runs of different {', '.join(differing)} cannot be compared: measure again")
    for run in result.runs:
        # The settings of a run have no secrets. Those of an arm have them in files of earlier versions of Railbus.
        for key, value in without_secrets(result.arms[run.arm].env).items():
            if run.measured.settings.get(key, "") != value:
                raise UserError(f"{name}: a run of {run.arm} had another {key} than its arm: measure again")


def require_comparable_results(first: BenchResult, second: BenchResult) -> None:
    """Require that two results have the same workload, arms, settings and machine.

    Raises:
        UserError: One of these differs.
    """
    own = {key for result in (first, second) for arm in result.arms.values() for key in arm.env}
    mine, other = (
        {f"workload {key}": bytes(value) for key, value in result.workload.items()}
        | _conditions(result.runs[0].measured, own)
        | {"arms": tuple(sorted(result.arms))}
        for result in (first, second)
    )
    differing = differing_conditions(mine, other)
    if differing:
        raise UserError(f"results of different {', '.join(differing)} cannot be compared")


def differing_conditions(first: dict[str, object], second: dict[str, object]) -> list[str]:
    return sorted(key for key in first.keys() | second.keys() if first.get(key) != second.get(key))


def _conditions(measured: RunMeasurements, own: set[str]) -> dict[str, object]:
    fixed: dict[str, object] = {"engine": measured.engine, "model": measured.model, **measured.machine}
    return fixed | {key: value for key, value in measured.settings.items() if key not in own}
