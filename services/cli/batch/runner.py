"""Run a batch job, or continue it after an interruption."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from services.cli.batch.client import DIR_VARIABLE, JobClient, fresh_batch_id, store_input
from services.cli.batch.outputs import write_outputs
from services.cli.batch.progress import ProgressLine, TokenPrices
from services.jobs.job_state import JobState
from services.runtime.errors import UserError
from services.runtime.files import write_whole

JOB_FILE: Final = "job.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    window_open: int
    line_attempts: int
    completion_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInput:
    """The input of a job.

    Attributes:
        source: The file that the user named.
        options_hash: A hash of everything else that the lines depend on.
        write: Writes the job's lines to a file, in OpenAI's batch format.
    """

    source: Path
    options_hash: str
    write: Callable[[BinaryIO], None]


async def submit(client: JobClient, batch_id: str, given: JobInput, options: JobOptions) -> None:
    try:
        plan = await asyncio.to_thread(store_input, client.store, batch_id, given.source.name, given.write)
    except OSError as error:
        raise UserError(f"the folder of {DIR_VARIABLE} cannot be written ({error.strerror or error})") from None
    if plan.bad:
        say(f"{plan.bad:,} of {plan.lines:,} lines are no requests: their errors will be in errors.jsonl")
    await client.create(
        batch_id, window_open=options.window_open, line_attempts=options.line_attempts,
        completion_ms=options.completion_ms,
    )  # fmt: skip


async def run_job(
    client: JobClient, out: Path, given: JobInput, options: JobOptions, prices: TokenPrices
) -> tuple[JobState, list[Path]]:
    """Run a job, or continue the earlier job in ``out``. Return the ended job and its result files.

    Raises:
        UserError: The input is invalid, or ``out`` belongs to a job with another input or other options.
    """
    batch_id = await asyncio.to_thread(_remembered, out, given)
    if client.find(batch_id) is None:
        try:
            await submit(client, batch_id, given, options)
        except UserError:
            (out / JOB_FILE).unlink(missing_ok=True)
            raise
    say(f"batch {batch_id}: Ctrl-C leaves it running; the same command, or `railbus batch results`, has its results")
    line, shown = ProgressLine(prices), _shower()

    def show(job: JobState) -> None:
        line.note(job.totals, time.monotonic())
        shown(line.text(job.totals, job.status))

    job = await client.follow(batch_id, show)
    if sys.stderr.isatty():
        say("")
    return job, await asyncio.to_thread(write_files, client, job, out)


def write_files(client: JobClient, job: JobState, out: Path) -> list[Path]:
    """Write the results of an ended job to the folder ``out``. Return the paths of the files.

    Raises:
        UserError: The job has not ended, or the folder cannot be written.
    """
    if job.finished is None:
        raise UserError(f"{job.batch_id} has not ended: it is {job.status}")
    for fault in job.finished.faults:
        say(fault.message)
    try:
        out.mkdir(parents=True, exist_ok=True)
        return write_outputs(client.store, job.finished, out)
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror or error}") from None


def _remembered(out: Path, given: JobInput) -> str:
    note = out / JOB_FILE
    stat = given.source.stat()
    facts = {"file": str(given.source.resolve()), "bytes": stat.st_size, "modified_ns": stat.st_mtime_ns}
    try:
        out.mkdir(parents=True, exist_ok=True)
        known = json.loads(note.read_text(encoding="utf-8")) if note.exists() else None
        if known is None:
            known = {"batch_id": fresh_batch_id(), **facts, "options_hash": given.options_hash}
            write_whole(note, json.dumps(known).encode())
    except (OSError, ValueError) as error:
        raise UserError(f"--out {out}: {error}: name another folder") from None
    if not isinstance(known, dict) or "batch_id" not in known:
        raise UserError(f"--out {out}: its {JOB_FILE} names no job: name another folder")
    if {name: known.get(name) for name in facts} != facts:
        raise UserError(
            f"--out {out} has the job of {known.get('file')}, or the file was changed since: name another folder"
        )
    # Earlier versions of Railbus wrote no hash.
    if known.get("options_hash", given.options_hash) != given.options_hash:
        raise UserError(
            f"--out {out} has a job of the same file with other options, such as --model or --tiers: name another"
            " folder, or give the options of that job"
        )
    return str(known["batch_id"])


def _shower() -> Callable[[str], None]:
    last = ""

    def show(text: str) -> None:
        nonlocal last
        if text == last:
            return
        last = text
        if not sys.stderr.isatty():
            say(text)
            return
        with contextlib.suppress(OSError):
            text = text[: max(20, os.get_terminal_size(sys.stderr.fileno()).columns - 1)]
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    return show


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
