"""``railbus batch``: run files of prompts."""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from services.cli.batch.client import JobClient, fresh_batch_id, job_store, store_input
from services.cli.batch.inputs import InputOptions, write_lines
from services.cli.batch.outputs import write_outputs
from services.cli.batch.progress import ProgressLine, TokenPrices
from services.cli.common import add_kafka_option, bus_settings, run_coroutine
from services.jobs.job_state import JobState
from services.jobs.store import write_whole
from services.runtime.errors import UserError

JOB_FILE: Final = "job.json"
DAY_H: Final = 24.0
ACTIONS: Final = {
    "pause": "submit no further line", "resume": "go on", "cancel": "end the job; what is done is kept",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    run = commands.add_parser("run", help="run a file and write its results; the same command goes on after a crash")
    run.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the results")
    submit = commands.add_parser("submit", help="submit a file and print the job's id")
    for each in (run, submit):
        _add_input_options(each)
    status = commands.add_parser("status", help="show how far a job is")
    listing = commands.add_parser("list", help="list the jobs, newest first")
    results = commands.add_parser("results", help="write the results of a job that has ended")
    results.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the results")
    actions = [commands.add_parser(name, help=about) for name, about in ACTIONS.items()]
    for each in (status, results, *actions):
        each.add_argument("batch", help="the job's id")
    for each in (status, listing):
        each.add_argument("--json", action="store_true", help="print JSON")
    for each in (run, submit, status, listing, results, *actions):
        add_kafka_option(each)


def _add_input_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", type=Path, help="OpenAI's batch JSONL, one prompt a line (.txt), or a table (.csv, .parquet)"
    )
    parser.add_argument("--template", help="the prompt of a table's row, with {column} for a column's value")
    parser.add_argument("--id-column", metavar="NAME", help="the column that names each line (default: its number)")
    parser.add_argument("--system", help="system message before each prompt")
    parser.add_argument("--model", help="which model, where a line names none")
    parser.add_argument("--max-tokens", type=int, help="longest answer, where a line names none")
    parser.add_argument("--temperature", type=float, help="0 is greedy")
    parser.add_argument("--seed", type=int, help="seed of sampling")
    parser.add_argument("--window", type=int, default=256, metavar="N", help="most requests open at once (%(default)s)")
    parser.add_argument("--attempts", type=int, default=4, metavar="N", help="most requests for a line (%(default)s)")
    parser.add_argument(
        "--within-hours", type=float, default=DAY_H, metavar="H", help="give up what is not done by then (%(default)s)"
    )
    parser.add_argument("--price", metavar="NAME", help="show the money at the prices of this API of the planner")
    parser.add_argument("--prices", type=Path, metavar="FILE", help="prices as for `railbus plan batch`")


def run(args: argparse.Namespace) -> int:
    """Return 0 when every line has an answer, 1 when some have none or the job did not complete, 2 for a mistake."""
    return run_coroutine(_run(args))


async def _run(args: argparse.Namespace) -> int:
    settings, store = bus_settings(args.kafka), job_store()
    if args.action in {"run", "submit"}:
        _check(args)
        prices = token_prices(args.price, args.prices)
    async with JobClient.opened(settings, store) as client:
        match args.action:
            case "run":
                return await _run_file(client, args, prices)
            case "submit":
                batch_id = fresh_batch_id()
                await _submit(client, batch_id, args)
                print(batch_id)
                return 0
            case "list":
                return _list(client.jobs(), as_json=args.json)
            case "status":
                job = client.job(args.batch)
                print(json.dumps(_facts(job)) if args.json else _described(job))
                return 0
            case "results":
                return _results(client, client.job(args.batch), args.out)
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


async def _run_file(client: JobClient, args: argparse.Namespace, prices: TokenPrices) -> int:
    out: Path = args.out
    batch_id = await asyncio.to_thread(_remembered, out, args.file)
    if client.find(batch_id) is None:
        try:
            await _submit(client, batch_id, args)
        except UserError:
            (out / JOB_FILE).unlink(missing_ok=True)
            raise
    _say(f"batch {batch_id}: Ctrl-C leaves it running; the same command, or `railbus batch results`, has its results")
    line, shown = ProgressLine(prices), _shower()

    def show(job: JobState) -> None:
        line.note(job.totals, time.monotonic())
        shown(line.text(job.totals, job.status))

    job = await client.follow(batch_id, show)
    if sys.stderr.isatty():
        _say("")
    return _results(client, job, out)


def _remembered(out: Path, source: Path) -> str:
    """Return the job of this folder, a new one the first time; it is noted before anything else is done.

    Raises:
        UserError: The folder has another file's job, or cannot be written.
    """
    note = out / JOB_FILE
    stat = source.stat()
    facts = {"file": str(source.resolve()), "bytes": stat.st_size, "modified_ns": stat.st_mtime_ns}
    try:
        out.mkdir(parents=True, exist_ok=True)
        known = json.loads(note.read_text(encoding="utf-8")) if note.exists() else None
        if known is None:
            known = {"batch_id": fresh_batch_id(), **facts}
            write_whole(note, json.dumps(known).encode())
    except (OSError, ValueError) as error:
        raise UserError(f"--out {out}: {error}: name another folder") from None
    if {name: known.get(name) for name in facts} != facts:
        raise UserError(
            f"--out {out} has the job of {known.get('file')}, or the file was changed since: name another folder"
        )
    return str(known["batch_id"])


async def _submit(client: JobClient, batch_id: str, args: argparse.Namespace) -> None:
    given = {"model": args.model, "max_tokens": args.max_tokens, "temperature": args.temperature, "seed": args.seed}
    options = InputOptions(
        template=args.template, id_column=args.id_column, system=args.system,
        body={name: value for name, value in given.items() if value is not None},
    )  # fmt: skip
    write = partial(write_lines, args.file, options)
    plan = await asyncio.to_thread(store_input, client.store, batch_id, args.file.name, write)
    if plan.bad:
        _say(f"{plan.bad:,} of {plan.lines:,} lines are no requests: their errors will be in errors.jsonl")
    await client.create(
        batch_id, window_open=args.window, line_attempts=args.attempts,
        completion_ms=max(1, int(args.within_hours * 3_600_000)),
    )  # fmt: skip


def _results(client: JobClient, job: JobState, out: Path) -> int:
    if job.finished is None:
        raise UserError(f"{job.batch_id} has not ended: {_described(job)}")
    for fault in job.finished.faults:
        _say(fault.message)
    out.mkdir(parents=True, exist_ok=True)
    try:
        written = write_outputs(client.store, job.finished, out)
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror or error}") from None
    print(_described(job))
    print("\n".join(str(path) for path in written))
    return 0 if job.finished.outcome == "completed" and not job.totals.failed else 1


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


def token_prices(name: str | None, file: Path | None) -> TokenPrices:
    """Return the prices of an API in the planner's price list.

    Raises:
        UserError: It is not there.
    """
    if name is None:
        return TokenPrices()
    from services.planner.batch.prices import read_prices

    apis = {api.name: api for api in read_prices(file).api}
    if name not in apis:
        raise UserError(f"--price {name!r}: must be one of {', '.join(sorted(apis))}")
    api = apis[name]
    return TokenPrices(api.input, api.output, api.cached_input)


def _shower() -> Callable[[str], None]:
    """Return what shows progress: over and over on one line of a terminal, else a line whenever it has changed."""
    last = ""

    def show(text: str) -> None:
        nonlocal last
        if text == last:
            return
        last = text
        if not sys.stderr.isatty():
            _say(text)
            return
        with contextlib.suppress(OSError):
            text = text[: max(20, os.get_terminal_size(sys.stderr.fileno()).columns - 1)]
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    return show


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
