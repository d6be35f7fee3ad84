"""Compare the predictions of ``railbus plan latency`` with published measurements.

``python -m tests.bench.published`` prints each measurement with the error of its prediction. With ``--leave-out``, it
also leaves out each source, each GPU and each model in turn, fits the constants of the formulas to the other
measurements, and prints the errors on those that were left out. This takes a few minutes.
"""

import csv
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from services.physics.catalogue.gpus import Gpu, gpu
from services.physics.catalogue.models import Model, model
from services.physics.catalogue.precisions import Precision
from services.physics.efficiency import Efficiency, practical
from services.physics.newcomers import burst
from services.physics.roofline import KvPrecision, decode_ms, prefill_ms
from services.physics.statistics import median
from services.planner.bench.fit import nelder_mead

DATA: Final = Path(__file__).parents[1] / "data" / "published" / "measurements.csv"

REQUEST_MS: Final = 2.6
"""Time for HTTP, tokenizer and scheduling of a request in a closed loop. The formulas of the engine leave it out."""


@dataclass(frozen=True, slots=True)
class Row:
    """One published measurement."""

    source: str
    gpu: Gpu
    model: Model
    precision: Precision
    kv: KvPrecision
    batch: int
    prompt: int
    output: int
    ttft_ms: float
    tpot_ms: float

    @property
    def engine(self) -> str:
        return "tensorrt-llm" if self.source == "T" else "nim"


@dataclass(frozen=True, slots=True)
class Held:
    """A published measurement, and the errors of its prediction.

    Attributes:
        row: The measurement.
        first: Relative error of the predicted time to first token.
        token: Relative error of the predicted time per token.
    """

    row: Row
    first: float
    token: float


def rows() -> tuple[Row, ...]:
    """Return all published measurements."""
    with DATA.open() as file:
        return tuple(
            Row(
                source=each["source"],
                gpu=gpu(each["gpu"]),
                model=model(each["model"]),
                precision="fp8" if each["precision"].startswith("fp8") else "bf16",  # FP16 has as many bytes as BF16
                kv="fp8" if "KV 1 byte" in each["precision"] else "bf16",
                batch=int(each["batch"]),
                prompt=int(each["prompt_tokens"]),
                output=int(each["output_tokens"]),
                ttft_ms=float(each["ttft_ms"]),
                tpot_ms=float(each["tpot_ms"]),
            )
            for each in csv.DictReader(file)
        )


def hold(row: Row, constants: Efficiency, request_ms: float = REQUEST_MS) -> Held:
    """Predict the time to first token and the time per token of a measurement. Return the errors of both predictions.

    Args:
        row: The measurement.
        constants: The constants of the formulas.
        request_ms: Time for HTTP, tokenizer and scheduling of a request, in milliseconds.
    """
    where = (row.model, row.gpu, row.precision)
    token = decode_ms(
        *where, batch=row.batch, context=row.prompt + row.output // 2, kv=row.kv, efficiency=constants
    )  # fmt: skip
    if row.source == "T":
        first = prefill_ms(*where, row.prompt, prompts=row.batch, efficiency=constants)
    else:
        arrived = burst(*where, batch=row.batch, prompt=row.prompt, efficiency=constants)
        first = request_ms + arrived.first_ms
        token += arrived.stall_ms / (row.output - 1)
    return Held(row, first / row.ttft_ms - 1, token / row.tpot_ms - 1)


def held(found: Sequence[Row]) -> tuple[Held, ...]:
    """Predict each measurement with the built-in constants for the measurement's GPU and engine. Return the errors."""
    return tuple(hold(row, practical(row.gpu, row.engine)) for row in found)  # type: ignore[arg-type]


# For each constant: its name, the generation or source to which it applies ("" for all), and the start of its fit.
_FITTED: Final = (
    ("bandwidth", "", 0.92), ("kv_bandwidth", "", 0.95), ("grouped_kv_bandwidth", "", 0.55), ("overlap", "", 0.3),
    ("activations", "", 40.0), ("flops", "ampere", 0.8), ("flops", "hopper", 0.74), ("layer_us", "ampere", 115.0),
    ("layer_us", "hopper", 72.0), ("sequence_us", "T", 1.0), ("sequence_us", "N", 30.0), ("request_ms", "", REQUEST_MS),
)  # fmt: skip
_SHARES: Final = {"bandwidth", "kv_bandwidth", "grouped_kv_bandwidth", "overlap", "flops"}


def fit(known: Sequence[Row]) -> Callable[[Row], Held]:
    """Fit the constants to these measurements, by least squares of the logarithms of predicted / measured.

    Return a function that predicts any measurement with the fitted constants.
    """

    def predictor(logs: Sequence[float]) -> Callable[[Row], Held]:
        values = [math.exp(log) for log in logs]

        def predict(row: Row) -> Held:
            chosen: dict[str, float] = {}
            for (name, of, _), value in zip(_FITTED, values, strict=True):
                if of in {"", row.gpu.generation, row.source}:
                    chosen[name] = min(1.0, value) if name in _SHARES else value
            request_ms = chosen.pop("request_ms")
            constants = replace(practical(row.gpu), **chosen, step_flops=chosen["flops"])
            return hold(row, constants, request_ms)

        return predict

    start = [math.log(value) for _, _, value in _FITTED]

    def loss(logs: Sequence[float]) -> float:
        predict = predictor(logs)
        errors = (math.log1p(error) ** 2 for row in known for error in _errors(predict(row)))
        return sum(errors) + 1e-3 * sum((a - b) ** 2 for a, b in zip(logs, start, strict=True))

    found = start
    for _ in range(3):
        _, found = nelder_mead(loss, found)
    return predictor(found)


def _errors(each: Held) -> tuple[float, float]:
    return each.first, each.token


def groups(found: Sequence[Held]) -> Mapping[str, list[float]]:
    """Return the absolute values of the relative errors, in three groups of predictions.

    The groups are the decoding of one sequence, the decoding of a batch, and prefill.
    """
    return {
        "decode alone": [abs(each.token) for each in found if each.row.batch == 1],
        "decode batched": [abs(each.token) for each in found if each.row.batch > 1],
        "prefill": [abs(each.first) for each in found],
    }


def summary(name: str, found: Sequence[Held]) -> Iterator[str]:
    for what, errors in groups(found).items():
        if errors:
            yield f"{name:<22} {what:<15} {len(errors):>3} rows  median {median(errors):6.1%}  worst {max(errors):6.1%}"


def main(arguments: Sequence[str]) -> None:
    every = rows()
    for each in held(every):
        row = each.row
        print(
            f"{row.source} {row.gpu.name:<8} {row.model.name:<12} {row.precision:<5} "
            f"{row.batch:>3} x {row.prompt:>5} + {row.output:<5} "
            f"first {row.ttft_ms:>9.2f} {each.first:>+7.1%}   token {row.tpot_ms:>7.3f} {each.token:>+7.1%}"
        )
    for line in summary("all, as shipped", held(every)):
        print(line)
    if "--leave-out" not in arguments:
        return
    parts: dict[str, Callable[[Row], str]] = {
        "source": lambda row: row.source, "gpu": lambda row: row.gpu.name, "model": lambda row: row.model.name,
    }  # fmt: skip
    for part, of in parts.items():
        for name in sorted({of(row) for row in every}):
            predict = fit([row for row in every if of(row) != name])
            for line in summary(f"without {part} {name}", [predict(row) for row in every if of(row) == name]):
                print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
