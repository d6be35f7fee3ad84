"""Run a batch job on a cascade of models.

A cascade finds the best lines of a file. The first model answers every line. Each answer gets a score, for example the
relevance of a document. Each model after the first begins with a random sample of the lines, which shows what a line
costs with this model. The model then answers the lines whose answers from the previous model had the highest scores.
An expensive last model thus answers few lines.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

import orjson

from services.cli.batch.client import JobClient, input_file_id
from services.cli.batch.inputs import hash_of
from services.cli.batch.progress import TokenPrices
from services.cli.batch.runner import JobInput, JobOptions, run_job, say
from services.cli.batch.tiers import Tiers, affordable, best, sampled, scorer_of
from services.jobs.job_state import JobState
from services.jobs.lines import BadLine, parse_line
from services.physics.cascade import rank_correlation, recall
from services.runtime.errors import UserError

BEST: float = 0.01
"""Share of all lines that are called the best lines.

For each tier after the first, the command estimates and prints the share of the best lines that this tier answers.
"""


@dataclass(slots=True)
class _Spent:
    hours: float = 0.0
    usd: float = 0.0


@dataclass(slots=True)
class _TierRun:
    folders: list[Path]
    scores: dict[str, float] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)


async def run_cascade(
    client: JobClient, out: Path, given: JobInput, tiers: Tiers, options: JobOptions, prices: list[TokenPrices]
) -> int:
    """Run the job on each model of the cascade in turn. Return the number of lines without an answer.

    Raises:
        UserError: The input is invalid, or no answer of a model has a score. The last model's answers need no scores.
    """
    spent = _Spent()
    job, _ = await run_job(client, out / "tier-1", _of_first(given, tiers.tier[0].model), options, prices[0])
    _count(spent, job, prices[0])
    runs = [_read(tiers, [out / "tier-1"])]
    total, lines_of = job.totals.lines, input_file_id(job.batch_id)
    for number, tier in enumerate(tiers.tier[1:], start=2):
        before = runs[-1]
        if not before.scores:
            raise UserError(f"no answer of tier {number - 1} has a score: correct [score] in the file of --tiers")
        if missing := len(before.names) - len(before.scores):
            say(f"tier {number - 1}: {missing:,} answers have no score and are not refined")
        price = prices[number - 1]
        sample = sampled([*before.scores], tiers.score.sample)
        folder = out / f"tier-{number}-sample"
        own = _of_lines(client, given.source, lines_of, set(sample), tier.model)
        job, _ = await run_job(client, folder, own, options, price)
        seconds, usd = _count(spent, job, price)
        checked = _read(tiers, [folder])
        say(_agreement(number, before.scores, checked.scores, tier.keep))
        wanted = max(1, round(tier.keep * total))
        each = max(1, job.totals.lines)
        count = affordable(
            wanted, tiers.budget, spent_h=spent.hours, spent_usd=spent.usd, seconds_each=seconds / each,
            usd_each=usd / each,
        )  # fmt: skip
        if count < wanted:
            say(f"tier {number}: the budget pays for {count:,} of {wanted:,} lines")
        chosen = set(best(before.scores, count)) - set(checked.names)
        folders = [folder]
        if chosen:
            own = _of_lines(client, given.source, lines_of, chosen, tier.model)
            job, _ = await run_job(client, out / f"tier-{number}", own, options, price)
            _count(spent, job, price)
            folders.append(out / f"tier-{number}")
        runs.append(_read(tiers, folders))
    say(f"all tiers: {spent.hours:.2f} h, ${spent.usd:.2f}")
    return _write_merged(out, runs)


def _count(spent: _Spent, job: JobState, prices: TokenPrices) -> tuple[float, float]:
    seconds = max(0, (job.finished_ms or job.created_ms) - job.created_ms) / 1_000
    usd = prices.cost(job.totals) or 0.0
    spent.hours += seconds / 3_600
    spent.usd += usd
    return seconds, usd


def _agreement(number: int, screen: dict[str, float], final: dict[str, float], keep: float) -> str:
    names = [name for name in final if name in screen]
    try:
        rho = rank_correlation([screen[name] for name in names], [final[name] for name in names])
    except ValueError as error:
        return f"tier {number}: rho cannot be measured: {error}"
    found = recall(rho, best=BEST, kept=keep)
    return (
        f"tier {number}: rho {rho:.2f} on {len(names)} lines that both models scored: the best {keep:.0%} of tier"
        f" {number - 1} contain {found:.0%} of the best {BEST:.0%} of tier {number}"
    )


# The hash of a tier has only what its own lines depend on. So after [score] was corrected, the cascade can continue.
def _of_first(given: JobInput, model: str) -> JobInput:
    return JobInput(
        source=given.source,
        options_hash=hash_of([given.options_hash, model]),
        write=partial(_write_first, given.write, model),
    )


def _of_lines(client: JobClient, source: Path, file_id: str, names: set[str], model: str) -> JobInput:
    return JobInput(
        source=source,
        options_hash=hash_of([sorted(names), model]),
        write=partial(_select, client, file_id, names, model),
    )


def _write_first(write: Callable[[BinaryIO], None], model: str, out: BinaryIO) -> None:
    write(_WithModel(out, model))  # type: ignore[arg-type]


class _WithModel:
    def __init__(self, out: BinaryIO, model: str) -> None:
        self._out = out
        self._model = model

    def write(self, raw: bytes) -> int:
        return self._out.write(with_model(raw, self._model))


def with_model(raw: bytes, model: str) -> bytes:
    """Set the model in a request line and return the line. If the line is not a valid request, return it unchanged."""
    try:
        value = orjson.loads(raw)
        value["body"]["model"] = model
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return raw
    return orjson.dumps(value) + (b"\n" if raw.endswith(b"\n") else b"")


def _select(client: JobClient, file_id: str, names: set[str], model: str, out: BinaryIO) -> None:
    with client.store.open(file_id) as file:
        for raw in file:
            try:
                named = raw.strip() and parse_line(raw.rstrip(b"\r\n")).custom_id in names
            except BadLine:
                continue
            if named:
                out.write(with_model(raw, model))


def _read(tiers: Tiers, folders: list[Path]) -> _TierRun:
    run, score_of = _TierRun(folders), scorer_of(tiers.score)
    for line in _lines(folders):
        value = orjson.loads(line)
        name = value["custom_id"]
        run.names.append(name)
        score = score_of(value["response"]["body"]["choices"][0]["message"]["content"])
        if score is not None:
            run.scores[name] = score
    return run


def _lines(folders: Iterable[Path]) -> Iterable[bytes]:
    for folder in folders:
        with (folder / "results.jsonl").open("rb") as file:
            yield from file


def _write_merged(out: Path, runs: list[_TierRun]) -> int:
    highest = {name: number for number, run in enumerate(runs, start=1) for name in run.names}
    later = {
        name: line
        for number, run in enumerate(runs[1:], start=2)
        for line in _lines(run.folders)
        if highest[name := orjson.loads(line)["custom_id"]] == number
    }
    fresh = out / ".results.jsonl.new"
    with fresh.open("wb") as file:
        for line in _lines(runs[0].folders):
            name = orjson.loads(line)["custom_id"]
            file.write(orjson.dumps({**orjson.loads(later.get(name, line)), "tier": highest[name]}) + b"\n")
    fresh.replace(out / "results.jsonl")
    errors = (out / "tier-1" / "errors.jsonl").read_bytes()
    (out / "errors.jsonl").write_bytes(errors)
    return errors.count(b"\n")
