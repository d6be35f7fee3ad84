"""Run the same prompts through vLLM's own ``run-batch`` and through ``railbus batch run`` with the engine ``vllm``.

    python -m tests.bench.batch_vllm time [--lines 200] [--tokens 96] [--rounds 1]
    python -m tests.bench.batch_vllm kill [--strike batch,generator,command]

Both run a small Gemma 3 with random weights on the CPU, with greedy decoding and 16 lines at once. Railbus's generator
has 17 slots. Batch requests may use 16 of them, instead of the default of three quarters. One slot stays free for
interactive requests.

``time`` runs run-batch, Railbus twice, and run-batch again. In each run, the engine is ready when the measurement
starts. The time of run-batch ends when its last result is on disk. The time of Railbus is that of the whole command
``railbus batch run``, with its start and end.

``kill`` ends run-batch half way with ``kill -9``, and starts it again with the same arguments. For each part in
``--strike``, Railbus runs one job. When half of the job's lines are answered, the part is killed and started again. The
lines that Railbus began or answered twice are counted on the log. run-batch has no log, so the number of its answers
before the kill is read from its progress bar.

Both commands need ``.venv-vllm`` (``make test-vllm``), or ``--python`` with the interpreter of such an environment.
Exit code 1 means that a line of Railbus is missing, is there twice, was answered twice, or differs from run-batch's, or
that Railbus took more than 1.05 times as long as run-batch.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from services.jobs.ids import job_of, parse_request_id
from tests.support.processes import ROOT, bare_environment
from tests.support.tree import Tree, running_tree
from tests.support.waiting import wait_until
from tests.vllm.models import sentence

BAR: Final = 1.05
AT_ONCE: Final = 16
WORDS: Final = 24
MAX_LEN: Final = 512
KV_GIB: Final = 0.25
START_S: Final = 300.0
PATIENCE_S: Final = 400.0
QUIET: Final = {
    "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
}  # fmt: skip
ENGINE: Final = {
    "RAILBUS_VLLM_DEVICE": "cpu", "RAILBUS_VLLM_DTYPE": "float32", "RAILBUS_VLLM_EAGER": "on",
    "RAILBUS_VLLM_KV_GIB": str(KV_GIB), "RAILBUS_VLLM_BLOCK_SIZE": "32", "RAILBUS_VLLM_MAX_LEN": str(MAX_LEN),
    "RAILBUS_VLLM_MAX_SEQS": str(AT_ONCE + 1), "RAILBUS_GENERATOR_BATCH_SLOTS": str(AT_ONCE),
    "RAILBUS_BATCH_STALL_MS": "15000",
}  # fmt: skip

Answers = dict[str, list[str]]
"""All answers to each line, by the line's name. There should be one for each line."""


class RunBatch:
    """One process of ``vllm run-batch``.

    Attributes:
        done: Number of answered lines, as the progress bar says.
        began_s: Time at which the process was started (monotonic clock).
        loaded_s: Time at which the engine was ready (monotonic clock).
    """

    def __init__(self, python: str, folder: Path) -> None:
        self.done, self.loaded_s, self.began_s = 0, 0.0, time.monotonic()
        self.said: list[str] = []
        self._folder = folder
        self._process = subprocess.Popen(
            [python, "-m", "vllm.entrypoints.openai.run_batch", "-i", "lines.jsonl", "-o", "peer.jsonl",
             "--model", str(folder / "model"), "--served-model-name", "model", "--dtype", "float32", "--enforce-eager",
             "--kv-cache-memory-bytes", str(int(KV_GIB * 2**30)), "--block-size", "32", "--max-model-len", str(MAX_LEN),
             "--max-num-seqs", str(AT_ONCE), "--seed", "0", "--scheduling-policy", "priority"],
            cwd=folder, env=bare_environment(**QUIET), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._follow, daemon=True).start()

    def wait(self, lines: int) -> float:
        """Wait until all ``lines`` results are written.

        Return the time from when the engine was ready until the last result was written, in seconds.
        """
        path = self._folder / "peer.jsonl"
        wait_until(lambda: lines_of(path) == lines or self._ended(), "run-batch writes its results", PATIENCE_S)
        ended_s = time.monotonic()
        code = self._process.wait(60)
        assert code == 0, (code, self.said[-20:])
        return ended_s - self.loaded_s

    def kill(self) -> None:
        """End the process and its child processes with ``kill -9``."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _ended(self) -> bool:
        return self._process.poll() is not None

    def _follow(self) -> None:
        for line in self._process.stdout or ():
            self.said.append(line.rstrip())
            del self.said[:-50]
            if "Reading batch from" in line:
                self.loaded_s = time.monotonic()
            if found := re.search(r"Running batch.*\| (\d+)/\d+ ", line):
                self.done = int(found[1])


@contextmanager
def run_batch(python: str, folder: Path) -> Iterator[RunBatch]:
    peer = RunBatch(python, folder)
    try:
        yield peer
    finally:
        peer.kill()


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def answers(path: Path) -> Answers:
    """Read a file of results, and return all answers that it has for each line."""
    found: Answers = {}
    for text in path.read_text().splitlines():
        row = json.loads(text)
        said = None if row["error"] else row["response"]["body"]["choices"][0]["message"]["content"]
        found.setdefault(row["custom_id"], []).append(str(said))
    return found


def prepare(python: str, folder: Path, lines: int, tokens: int) -> None:
    """Write a model to ``folder/model``, and ``lines`` requests to ``folder/lines.jsonl``.

    The model is a small Gemma 3 with random weights. Each request asks for at most ``tokens`` tokens. ``python`` is the
    interpreter that runs the program that writes the model.
    """
    subprocess.run(
        [python, "-m", "tests.bench.vllm_model", str(folder / "model")], check=True, cwd=ROOT,
        env=bare_environment(**QUIET), stdout=subprocess.DEVNULL,
    )  # fmt: skip
    body: dict[str, Any] = {"model": "model", "max_tokens": tokens, "temperature": 0}
    rows = [
        {
            "custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions",
            "body": body | {"messages": [{"role": "user", "content": sentence(number, WORDS)}]},
        }
        for number in range(lines)
    ]  # fmt: skip
    (folder / "lines.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


class Job:
    """The command ``railbus batch run``. If the command is started again, it continues the same job."""

    def __init__(self, tree: Tree, out: str) -> None:
        self.tree, self.out, self.done = tree, tree.folder / out, 0
        self.said: list[str] = []
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "services.cli", "batch", "run", "lines.jsonl", "--out", self.out.name,
             "--window", "64"],
            cwd=self.tree.folder, env=bare_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        threading.Thread(target=self._follow, args=(self._process,), daemon=True).start()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> Answers:
        """Wait until the command has ended with exit code 0, and return the answers."""
        code = self._process.wait(PATIENCE_S)
        assert code == 0, (code, self.said[-5:])
        return answers(self.out / "results.jsonl")

    def _follow(self, process: subprocess.Popen[str]) -> None:
        for line in process.stderr or ():
            self.said.append(line.strip())
            del self.said[:-20]
            if found := re.search(r"\] ([\d,]+)/", line):
                self.done = int(found[1].replace(",", ""))


@contextmanager
def railbus(python: str, folder: Path) -> Iterator[Tree]:
    env = {**ENGINE, "RAILBUS_GENERATOR_PYTHON": python}
    with running_tree(
        folder, "--engine", "vllm", "--model-path", str(folder / "model"), start_s=START_S, **env
    ) as tree:  # fmt: skip
        wait_until(lambda: tree.said("batch ready"), "the batch service serves", 120)
        yield tree


def compare_times(args: argparse.Namespace, folder: Path) -> bool:
    """Run vLLM's ``run-batch`` and ``railbus batch run`` in turn, and print their times.

    Return whether the answers are equal and Railbus is fast enough.
    """
    took: dict[str, list[float]] = {"run-batch": [], "railbus": []}
    theirs: Answers = {}
    ours: list[Answers] = []

    def peer() -> None:
        nonlocal theirs
        (folder / "peer.jsonl").unlink(missing_ok=True)
        with run_batch(args.python, folder) as process:
            took["run-batch"].append(process.wait(args.lines))
            whole_s = time.monotonic() - process.began_s
            print(f"run-batch: {took['run-batch'][-1]:.1f} s; with its start and end {whole_s:.1f} s", flush=True)
        theirs = answers(folder / "peer.jsonl")

    for number in range(args.rounds):
        peer()
        began_s = time.monotonic()
        with railbus(args.python, folder) as tree:
            print(f"railbus up: ready after {time.monotonic() - began_s:.1f} s", flush=True)
            for name in (f"first-{number}", f"second-{number}"):
                began_s = time.monotonic()
                ours.append(Job(tree, name).end())
                took["railbus"].append(time.monotonic() - began_s)
                seen = follow_job(tree, folder / name)
                print(
                    f"railbus batch run: {took['railbus'][-1]:.1f} s; from the first line begun to the last answered "
                    f"{seen.busy_s:.1f} s",
                    flush=True,
                )
        peer()
    equal = [sum(each.get(name) == said for name, said in theirs.items()) for each in ours]
    ratio = statistics.median(took["railbus"]) / statistics.median(took["run-batch"])
    print(f"equal answers: {equal} of {args.lines}; ratio of the medians {ratio:.3f} (bar {BAR})")
    print(f"load average {os.getloadavg()[1]:.1f}")
    return all(count == args.lines == len(theirs) for count in equal) and ratio <= BAR


def compare_kills(args: argparse.Namespace, folder: Path) -> bool:
    """Kill run-batch, and each part of Railbus in ``--strike``, when half of the lines are answered.

    Print how many answers were kept, and how many lines were begun or answered twice.

    Return whether Railbus has the same answers as run-batch and has answered no line twice.
    """
    print("| killed | answered at the kill | of these kept | lines begun twice | answered twice | each line once |")
    print("|---|---|---|---|---|---|")
    with run_batch(args.python, folder) as first:
        wait_until(lambda: first.done >= args.lines // 2, "half of the lines are answered", PATIENCE_S)
        before = first.done
        first.kill()
    kept = lines_of(folder / "peer.jsonl")
    with run_batch(args.python, folder) as again:
        again.wait(args.lines)
    theirs = answers(folder / "peer.jsonl")
    lost = before - kept
    print(
        f"| vLLM's run-batch | {before} | {kept} | {lost} or more | {lost} | {once(theirs, args.lines)} |", flush=True
    )
    well = True
    with railbus(args.python, folder) as tree:
        for what in args.strike.split(","):
            job = Job(tree, f"killed-{what}")
            try:
                wait_until(half_of(job, args.lines), "half of the lines are answered", PATIENCE_S)
                before = job.done
                if what == "command":
                    job.kill()
                    job.start()
                else:
                    tree.kill(what)
                ours = job.end()
            finally:
                job.kill()
            seen = follow_job(tree, job.out)
            twice = sum(count > 1 for count in seen.answered.values())
            cells = f"{before} | {before} | {sum(count > 1 for count in seen.begun.values())} | {twice}"
            print(f"| Railbus: {what} | {cells} | {once(ours, args.lines)} |", flush=True)
            same = ours == theirs
            well = well and same and not twice
            if not same:
                print(f"other answers: {[name for name, said in ours.items() if theirs.get(name) != said][:5]}")
    print(f"load average {os.getloadavg()[1]:.1f}")
    return well


def half_of(job: Job, lines: int) -> Callable[[], bool]:
    return lambda: job.done >= lines // 2


def once(found: Answers, lines: int) -> str:
    return "yes" if len(found) == lines and all(len(each) == 1 for each in found.values()) else "no"


class Seen(NamedTuple):
    """What the log says about a job.

    Attributes:
        begun: How often each line was begun.
        answered: How often each line was answered.
        busy_s: Seconds from the first line that was begun to the last that was answered.
    """

    begun: Counter[int]
    answered: Counter[int]
    busy_s: float


def follow_job(tree: Tree, out: Path) -> Seen:
    """Read the events of a job from the log. The file ``job.json`` in the folder ``out`` names the job."""
    job = job_of(json.loads((out / "job.json").read_text())["batch_id"])
    told = tree.railbus("tail", "--from", "beginning", "--no-follow", "--json", timeout=120)
    assert told.returncode == 0, told.stderr
    seen = Seen(Counter(), Counter(), 0.0)
    times_us: list[int] = []
    for text in told.stdout.splitlines():
        record = json.loads(text)
        if record.get("kind") not in {"Started", "Finished"}:
            continue
        line = parse_request_id(record["event"]["request_id"])
        if line.job == job:
            (seen.begun if record["kind"] == "Started" else seen.answered)[line.line] += 1
            times_us.append(record["event"]["at"])
    return seen._replace(busy_s=(max(times_us) - min(times_us)) / 1e6)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.batch_vllm", description=__doc__)
    parser.add_argument("what", choices=("time", "kill"))
    parser.add_argument(
        "--python",
        default=str(Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"),
        help="Python interpreter of an environment with vLLM",
    )
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument(
        "--tokens", type=int, default=96, help="maximum number of tokens of an answer (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=1,
        help="number of rounds: run-batch, Railbus twice, run-batch (default: %(default)s)",
    )
    parser.add_argument(
        "--strike", default="batch,generator,command", help="parts of Railbus to kill (default: %(default)s)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="batch-vllm-") as name:
        folder = Path(name)
        prepare(args.python, folder, args.lines, args.tokens)
        well = (compare_times if args.what == "time" else compare_kills)(args, folder)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
