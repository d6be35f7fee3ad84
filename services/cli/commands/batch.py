"""``railbus batch``: run files of prompts as batch jobs."""

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any, Final

from services.cli.batch.cascade import run_cascade
from services.cli.batch.client import JobClient, fresh_batch_id, job_store
from services.cli.batch.inputs import InputOptions, write_lines
from services.cli.batch.prices import token_prices
from services.cli.batch.progress import ProgressLine, TokenPrices
from services.cli.batch.runner import JobInput, JobOptions, run_job, submit, write_files
from services.cli.batch.tiers import read_tiers
from services.cli.common import add_kafka_option, bus_settings, number, run_coroutine, text, whole_number
from services.jobs.job_state import JobState
from services.runtime.chat_body import BadBody, ChatBody, convert
from services.runtime.errors import UserError

DAY_H: Final = 24.0
ACTIONS: Final = {
    "pause": "submit no further lines; open requests are still answered",
    "resume": "continue a paused job",
    "cancel": "end a job; results of finished lines are kept",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    run = commands.add_parser("run", help="run a file and write its results; after a crash, the same command continues")
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    run.add_argument(
        "--tiers", type=Path, metavar="FILE",
        help="TOML file of a cascade: a small model answers all lines, larger models answer the best ones again",
    )  # fmt: skip
    submit = commands.add_parser("submit", help="submit a file and print the job's id")
    for each in (run, submit):
        _add_input_options(each)
    status = commands.add_parser("status", help="show the progress of a job")
    listing = commands.add_parser("list", help="list jobs, newest first")
    results = commands.add_parser("results", help="write the results of a job that has ended")
    results.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    actions = [commands.add_parser(name, help=about) for name, about in ACTIONS.items()]
    for each in (status, results, *actions):
        each.add_argument("batch", help="the job's id")
    for each in (status, listing):
        each.add_argument("--json", action="store_true", help="print JSON")
    for each in (run, submit, status, listing, results, *actions):
        add_kafka_option(each)


def _add_input_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=Path,
        help="OpenAI's batch format (.jsonl), one prompt per line (.txt), or a table (.csv, .parquet)",
    )
    parser.add_argument(
        "--template", type=text, help="prompt for each row of a table; {column} stands for the value in that column"
    )
    parser.add_argument(
        "--id-column", metavar="NAME", help="column of a table with each row's custom_id (default: line-1, line-2, ...)"
    )
    parser.add_argument("--system", type=text, help="system message before each prompt of a .txt file or table")
    parser.add_argument("--model", type=text, help="model for lines that name none")
    parser.add_argument(
        "--max-tokens", type=whole_number, help="maximum number of tokens of an answer, for lines that name none"
    )
    parser.add_argument(
        "--temperature", type=number, help="sampling temperature, for lines that name none; 0 is greedy"
    )
    parser.add_argument("--seed", type=whole_number, help="sampling seed, for lines that name none")
    parser.add_argument(
        "--window",
        type=int,
        default=256,
        metavar="N",
        help="maximum number of open requests of the job (default: %(default)s)",
    )
    parser.add_argument(
        "--attempts",
        type=int,
        default=4,
        metavar="N",
        help="maximum number of requests for a line (default: %(default)s)",
    )
    parser.add_argument(
        "--within-hours",
        type=float,
        default=DAY_H,
        metavar="H",
        help="hours after which the job ends, done or not (default: %(default)s)",
    )
    parser.add_argument("--price", metavar="NAME", help="show the cost at the prices of this API in the price file")
    parser.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help="price file, as for `railbus plan batch` (default: the built-in one)",
    )


def run(args: argparse.Namespace) -> int:
    """Perform the action ``args.action``, and return the exit code.

    For ``run`` and ``results``, it is 1 if a line has no answer or the job did not complete. In all other cases,
    it is 0.
    """
    return run_coroutine(_run(args))


async def _run(args: argparse.Namespace) -> int:
    settings, store = bus_settings(args.kafka), job_store(args.kafka)
    if args.action in {"run", "submit"}:
        _check(args)
        prices = token_prices(args.price, args.prices)
    async with JobClient.opened(settings, store) as client:
        match args.action:
            case "run":
                return await _run_file(client, args, prices)
            case "submit":
                batch_id = fresh_batch_id()
                await submit(client, batch_id, _input(args), _options(args))
                print(batch_id)
                return 0
            case "list":
                return _list(client.jobs(), as_json=args.json)
            case "status":
                job = client.job(args.batch)
                print(json.dumps(_facts(job)) if args.json else _described(job))
                return 0
            case "results":
                job = client.job(args.batch)
                return _tell(job, write_files(client, job, args.out))
            case _:
                await client.control(client.job(args.batch), args.action)
                print(_described(client.job(args.batch)))
                return 0


def _check(args: argparse.Namespace) -> None:
    for flag, value, most in (("--window", args.window, 10_000), ("--attempts", args.attempts, 100)):
        if not 1 <= value <= most:
            raise UserError(f"{flag} {value}: must be between 1 and {most:,}")
    if not 0 < args.within_hours <= 720:
        raise UserError(f"--within-hours {args.within_hours:g}: must be above 0 and at most 720")
    if not args.file.is_file():
        raise UserError(f"{args.file} is no file: name the file with the prompts")
    try:
        convert({"messages": [{"role": "user", "content": ""}], **_body(args)}, ChatBody)
    except BadBody as bad:  # otherwise every line would fail, or JSON would turn NaN into no value at all
        what = bad.message.partition(" at ")[0]
        raise UserError(f"--{(bad.param or '').replace('_', '-')}: {what}") from None


async def _run_file(client: JobClient, args: argparse.Namespace, prices: TokenPrices) -> int:
    if args.tiers is None:
        job, written = await run_job(client, args.out, _input(args), _options(args), prices)
        return _tell(job, written)
    tiers = read_tiers(args.tiers)
    each = [token_prices(tier.price, args.prices) for tier in tiers.tier]
    given, options = _input(args), _options(args)
    lacking = await run_cascade(client, args.out, given, tiers, options, each)
    print(args.out / "results.jsonl")
    return 1 if lacking else 0


def _options(args: argparse.Namespace) -> JobOptions:
    return JobOptions(
        window_open=args.window, line_attempts=args.attempts,
        completion_ms=max(1, int(args.within_hours * 3_600_000)),
    )  # fmt: skip


def _input(args: argparse.Namespace) -> JobInput:
    options = InputOptions(
        template=args.template, id_column=args.id_column, system=args.system, body=_body(args)
    )  # fmt: skip
    return JobInput(source=args.file, options_hash=options.digest(), write=partial(write_lines, args.file, options))


def _body(args: argparse.Namespace) -> dict[str, Any]:
    given = {"model": args.model, "max_tokens": args.max_tokens, "temperature": args.temperature, "seed": args.seed}
    return {name: value for name, value in given.items() if value is not None}


def _tell(job: JobState, written: list[Path]) -> int:
    print(_described(job))
    print("\n".join(str(path) for path in written))
    return 0 if job.status == "completed" and not job.totals.failed else 1


def _list(jobs: list[JobState], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps([_facts(job) for job in jobs]))
    else:
        print("\n".join(map(_described, jobs)) or "no batches: submit one with `railbus batch run FILE --out DIR`")
    return 0


def _described(job: JobState) -> str:
    return f"{job.batch_id} {ProgressLine().text(job.totals, job.status)}"


def _facts(job: JobState) -> dict[str, Any]:
    totals = job.totals
    return {
        "batch_id": job.batch_id, "tenant": job.created.tenant, "status": job.status, "lines": totals.lines,
        "completed": totals.completed, "failed": totals.failed, "retried": totals.retried,
        "prompt_tokens": totals.prompt_tokens, "cached_tokens": totals.cached_tokens,
        "completion_tokens": totals.completion_tokens, "created_ms": job.created_ms, "finished_ms": job.finished_ms,
    }  # fmt: skip
