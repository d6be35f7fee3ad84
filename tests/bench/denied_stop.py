"""Measure how soon the engine stops after a denial: from the verdict to the close of the model server's connection.

    python -m tests.bench.denied_stop [--requests 40]

A tree with the default policy uses the model server in ``tests/bench/kit``, whose first token would take two seconds.
Every prompt contains a text that looks like an access key. So the request is denied while the model server still
prepares the first token. The time of the verdict is read from the log. The time of the close is read from the model
server's journal, which notes when its client disconnects.

The output also says how much of the engine's time the denial saved. This is the time from the close to the planned end
of the answer, as a percentage of the answer's planned duration.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import aiohttp

from schemas.stream import Verdict
from tests.bench.kit.servers import upstream
from tests.bench.stream_log import stream_log
from tests.support.tree import running_tree

FIRST_MS, GAP_MS, CHUNKS = 2_000, 20, 100
MODEL = f"fake-A-t{FIRST_MS}-g{GAP_MS}-n{CHUNKS}"
ANSWER_MS = FIRST_MS + GAP_MS * (CHUNKS - 1)
PROMPT = "Why does the support desk not get in with the key {}?"


def key(number):
    """Return a text that looks like an access key. Each number gives a different text."""
    letters = "".join(chr(ord("A") + number // 26**place % 26) for place in range(4))
    return f"AKIAQ3ZRT7WLMKPX{letters}"


async def ask(url, count, pace_s):
    """Send ``count`` requests one after another, ``pace_s`` seconds apart. Exit if one of them is not denied."""
    async with aiohttp.ClientSession() as session:
        for number in range(count):
            messages = [{"role": "user", "content": PROMPT.format(key(number))}]
            async with session.post(
                f"{url}/v1/chat/completions", json={"model": MODEL, "messages": messages}
            ) as answer:
                body = await answer.json()
                if body["choices"][0]["finish_reason"] != "content_filter":
                    sys.exit(f"not denied: {body}")
            await asyncio.sleep(pace_s)


def report(log, journal):
    denied = sorted(record.event.at / 1e6 for record in log if isinstance(record.event, Verdict))
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    arrived = sorted(entry["at_s"] for entry in entries if entry["event"] == "arrived")
    gone = sorted(entry["at_s"] for entry in entries if entry["event"] == "client_gone")
    if len(arrived) != len(gone):
        sys.exit(f"{len(denied)} verdicts, {len(arrived)} requests at the model server, {len(gone)} given up")
    # Requests come one after another, so the last verdict before an end belongs to it. Some verdicts have no end,
    # because they come before the model server is asked.
    stops = sorted((end - max(at for at in denied if at <= end)) * 1e3 for end in gone)
    spent = sum(end - begin for begin, end in zip(arrived, gone, strict=True)) * 1e3 / len(gone)

    def at(share):
        return stops[min(len(stops) - 1, int(len(stops) * share))]

    print(
        f"{len(denied)} denied, {len(denied) - len(gone)} of them before the engine was asked;"
        f" verdict to engine stopped, p50 / p95 / p99: {at(0.5):.1f} / {at(0.95):.1f} / {at(0.99):.1f} ms;"
        f" engine busy {spent:.0f} ms of {ANSWER_MS} an answer: {100 * (1 - spent / ANSWER_MS):.1f} % saved"
    )


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.bench.denied_stop", description=__doc__)
    parser.add_argument("--requests", type=int, default=40)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        journal = folder / "journal.jsonl"
        url = stack.enter_context(upstream(journal=journal)).url
        tree = stack.enter_context(running_tree(folder, "--engine", "openai", "--upstream-url", url, governed=True))
        asyncio.run(ask(tree.url, arguments.requests, 0.1))
        time.sleep(0.5)
        report(asyncio.run(stream_log(tree.kafka)), journal)


if __name__ == "__main__":
    main()
