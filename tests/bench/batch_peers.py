"""Kill a job half way, with Railbus and with LiteLLM. Count the answers that are lost or paid for twice.

    python -m tests.bench.batch_peers --python ENV/bin/python [--lines 400]

ENV is a virtual environment with ``pip install 'litellm==1.109.1'``. LiteLLM's ``/v1/batches`` passes a file to a
provider that has a batch API, and runs no lines itself. So this benchmark uses ``litellm.batch_completion``, which runs
lines on threads. A small program calls this function and appends the answers to a file. If the program is started
again, it leaves out the lines whose answers are in the file. The row ``litellm`` of the table is this program with one
call for the whole file. The row ``litellm-hundreds`` is this program with one call for each hundred lines.

Railbus runs the same lines with the engine ``openai``, three times. In the first run the batch service is killed, in
the second the generator, and in the third the command. ``kill -9`` is sent when half of the lines are answered. Then
this benchmark starts LiteLLM's program or Railbus's command again, with the same arguments. Railbus's supervisor starts
a killed service again.

Each run has its own model server, which is asked at most 32 lines at a time. The server counts the requests, and the
answers that it has sent completely.

Exit code 1 means that Railbus's results do not have exactly one answer for each line, or that the model server answered
too many lines twice: more than 32 lines if the generator was killed, or any line if another process was killed.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web

from tests.support.model_server import frame
from tests.support.processes import bare_environment
from tests.support.tree import running_tree
from tests.support.waiting import wait_until

AT_ONCE = 32
ANSWER_S = 0.4
PATIENCE_S = 300.0
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False", "LITELLM_LOG": "ERROR",
    "OPENAI_API_KEY": "sk-x",
}  # fmt: skip

PEER = """
import json, sys, litellm
url, prompts, out, at_once, most = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
try:
    done = {json.loads(line)[0] for line in open(out)}
except FileNotFoundError:
    done = set()
left = [prompt for prompt in open(prompts).read().splitlines() if prompt not in done]
for start in range(0, len(left), most):
    part = left[start : start + most]
    found = litellm.batch_completion(
        model="openai/default", api_base=url + "/v1", max_workers=at_once,
        messages=[[{"role": "user", "content": prompt}] for prompt in part],
    )
    with open(out, "a") as file:
        for prompt, answer in zip(part, found):
            text = None if isinstance(answer, Exception) else answer.choices[0].message.content
            file.write(json.dumps([prompt, text]) + "\\n")
"""


class CountingServer:
    """A model server that answers each request after 0.4 s, and counts requests and answers.

    Attributes:
        asked: For each prompt, the number of received requests.
        answered: For each prompt, the number of answers that were sent completely.
    """

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.url = ""

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "default", "object": "model"}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        line = body["messages"][-1]["content"]
        self.asked[line] += 1
        await asyncio.sleep(ANSWER_S)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if body.get("stream"):
            await response.prepare(request)
            await response.write(frame({"content": f"Answer: {line}"}, 4))
            await response.write(frame({}, 4, "stop") + b"data: [DONE]\n\n")
        else:
            choice = {
                "index": 0,
                "message": {"role": "assistant", "content": f"Answer: {line}"},
                "finish_reason": "stop",
            }
            usage = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
            told = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "default"}
            response = web.json_response(told | {"choices": [choice], "usage": usage})
            await response.prepare(request)
        await response.write_eof()
        self.answered[line] += 1
        return response

    async def serve(self) -> web.AppRunner:
        app = web.Application()
        app.add_routes([web.get("/v1/models", self.models), web.post("/v1/chat/completions", self.complete)])
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner


@contextmanager
def counting_server() -> Iterator[CountingServer]:
    """Within the ``with`` block, run a ``CountingServer`` in a separate thread. Yield the server."""
    server, loop = CountingServer(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(server.serve(), loop).result(10)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


class Program:
    """A command that runs as a child process, and can be killed and started again."""

    def __init__(self, command: list[str], folder: Path, **env: str) -> None:
        self._command, self._folder, self._env = command, folder, env
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, cwd=self._folder, env=bare_environment(**self._env), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def kill(self) -> None:
        """End the process with ``kill -9``."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Wait until the process has ended, and check that its exit code is 0."""
        code = self.process.wait(PATIENCE_S)
        assert code == 0, f"it ended with {code}"


def peer(python: str, folder: Path, prompts: list[str], most: int) -> tuple[str, bool]:
    """Run LiteLLM, kill it halfway, and start it again.

    Args:
        python: Interpreter of an environment with LiteLLM.
        folder: Folder with the file of prompts.
        prompts: All prompts.
        most: Maximum number of lines in one call of ``litellm.batch_completion``.

    Returns:
        The cells of a row of the printed table, and whether each line has exactly one answer.
    """
    with counting_server() as server:
        command = [python, "-c", PEER, server.url, "prompts.txt", "out.jsonl", str(AT_ONCE), str(most)]
        program = Program(command, folder, **QUIET)
        try:
            half_way(server, prompts)
            before = server.answered.total()
            program.kill()
            kept = lines_of(folder / "out.jsonl")
            program.start()
            program.end()
        finally:
            program.kill()
        found = [json.loads(line) for line in (folder / "out.jsonl").open()]
        once = Counter(prompt for prompt, text in found if text == f"Answer: {prompt}") == Counter(prompts)
        return row(server, prompts, before, f"{kept} of them were in its file", once=once), once


def ours(what: str, folder: Path, prompts: list[str]) -> tuple[str, bool]:
    """Run a job with Railbus. When half of the lines are answered, kill one process.

    Args:
        what: The process to kill: the service ``batch``, the service ``generator``, or the ``command`` that runs the
            job.
        folder: Folder with the file of prompts.
        prompts: All prompts.

    Returns:
        The cells of a row of the printed table, and whether Railbus passed. It passed if its results have exactly one
        answer for each line, and the model server answered no line twice. If the generator is killed, the model server
        may answer up to 32 lines twice.
    """
    with (
        counting_server() as server,
        running_tree(
            folder, "--engine", "openai", "--upstream-url", server.url, start_s=120, RAILBUS_BATCH_STALL_MS="10000"
        ) as tree,
    ):
        wait_until(lambda: tree.said("batch ready"), "the batch service serves", 120)
        command = [sys.executable, "-m", "services.cli", "batch", "run", "prompts.txt", "--out", "out"]
        program = Program([*command, "--window", str(AT_ONCE)], folder)
        try:
            half_way(server, prompts)
            before = server.answered.total()
            if what == "command":
                program.kill()
                program.start()
            else:
                tree.kill(what)
            program.end()
        finally:
            program.kill()
        rows = [json.loads(line) for line in (folder / "out" / "results.jsonl").open()]
        said = [(each["custom_id"], each["response"]["body"]["choices"][0]["message"]["content"]) for each in rows]
        once = said == [(f"line-{number + 1}", f"Answer: {prompt}") for number, prompt in enumerate(prompts)]
        again = sum(server.answered[prompt] > 1 for prompt in prompts)
        # A killed generator may have got whole answers that it has not written yet: at most as many as it had open.
        well = once and again <= (AT_ONCE if what == "generator" else 0)
        return row(server, prompts, before, "all on the log", once=once), well


def half_way(server: CountingServer, prompts: list[str]) -> None:
    wait_until(lambda: server.answered.total() >= len(prompts) // 2, "half of the lines are answered", PATIENCE_S)


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def row(server: CountingServer, prompts: list[str], before: int, kept: str, *, once: bool) -> str:
    """Return the cells of one row of the printed table, without the first cell. That cell has the program's name.

    Args:
        server: The model server, with its counts.
        prompts: All prompts.
        before: Number of answers at the kill.
        kept: Text that says how many of these answers survived the kill.
        once: Whether each line has exactly one answer.
    """
    asked = [server.asked[prompt] for prompt in prompts]
    again = sum(server.answered[prompt] > 1 for prompt in prompts)
    return f"{before}; {kept} | {sum(asked)} | {sum(each > 1 for each in asked)} | {again} | {'yes' if once else 'no'}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.batch_peers", description=__doc__)
    parser.add_argument("--python", help="Python interpreter of an environment with LiteLLM")
    parser.add_argument("--lines", type=int, default=400)
    args = parser.parse_args()
    prompts = [f"Line {number} of the job." for number in range(args.lines)]
    arms = [("Railbus, the batch service killed", "batch"), ("Railbus, the generator killed", "generator")]
    arms.append(("Railbus, the command killed", "command"))
    if args.python:
        arms += [("litellm", str(args.lines)), ("litellm-hundreds", "100")]
    all_well = True
    print("| program | answered at the kill | requests | lines asked twice | answered twice | each line once |")
    print("|---|---|---|---|---|---|")
    for name, what in arms:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "prompts.txt").write_text("".join(f"{prompt}\n" for prompt in prompts))
            began = time.monotonic()
            if what.isdigit():
                cells, _ = peer(args.python, Path(folder), prompts, int(what))
            else:
                cells, well = ours(what, Path(folder), prompts)
                all_well = all_well and well
            print(f"| {name} ({time.monotonic() - began:.0f} s) | {cells} |", flush=True)
    return 0 if all_well else 1


if __name__ == "__main__":
    sys.exit(main())
