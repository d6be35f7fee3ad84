"""Measure how much rails delay the first token if they run during the prefill, and if they run before it.

    python -m tests.bench.governed_ttft [--requests 60] [--prefill-ms 40]

Three arms take turns, request by request, so that the state of the machine affects all alike. ``ungoverned`` is a tree
without rails. ``governed`` is a tree with rails and safety and the default policy, whose rails run beside the prefill.
``serial`` is the control: the benchmark itself runs the same rails, and then sends each allowed prompt to the tree
without rails. No prompt is used twice, so no result of a rail comes from a cache. The model server is the one in
``tests/bench/kit``. Its first token comes ``--prefill-ms`` after the request.

Hidden time is the part of the rails' time that does not delay the first token. It is the median time of the rails,
plus the median TTFT of ``ungoverned``, minus the median TTFT of ``governed``. ``services.physics.governance`` predicts
that it is the smaller of two times: the rails' time, and the time of queue and prefill.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import aiohttp

from schemas.ids import uuid7
from schemas.requests import Delivery, Message, Request, Sampling
from schemas.stream import Chunk, Started, Verdict
from services.physics.governance import governed_start
from services.policy import DEFAULT_POLICY, load
from services.rails.evaluator import build_evaluator
from services.rails.jailbreak import JailbreakClassifier
from services.runtime.clock import now_ms
from tests.bench.kit.servers import upstream
from tests.bench.stream_log import stream_log
from tests.support.tree import running_tree

PROMPT = (
    "Our support desk writes about {} tickets a day. Summarise in three sentences what an append-only log is good for "
    "when answers are streamed, and say which of the reasons matters most."
)


async def first_token_ms(session, url, model, prompt):
    """Return the milliseconds from the sending of a request to its first text, or None if the request is denied."""
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": prompt}]}
    began, first = time.perf_counter(), None
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            choice = json.loads(line[6:])["choices"][0]
            if first is None and choice["delta"].get("content"):
                first = (time.perf_counter() - began) * 1_000
            if choice["finish_reason"] == "content_filter":
                return None
    return first


async def judged_first_ms(session, judge, url, model, prompt, number):
    """Run the rails, then the model. Return the rails' time plus the model's time to first token, in milliseconds.

    Return None if the rails do not allow the prompt, or if ``first_token_ms`` returns None.
    """
    request = Request(
        request_id=uuid7(now_ms(), number), tenant="local", at=now_ms() * 1_000, source="bench",
        messages=(Message(role="user", content=prompt),), sampling=Sampling(max_tokens=64), delivery=Delivery(),
    )  # fmt: skip
    began = time.perf_counter()
    verdict = (await judge.evaluate(request)).content
    rails_ms = (time.perf_counter() - began) * 1_000
    if verdict.decision != "allow":
        return None
    first_ms = await first_token_ms(session, url, model, prompt)
    return None if first_ms is None else rails_ms + first_ms


def from_log(log):
    """Return two lists of times in milliseconds.

    The first list has the time of the rails for each verdict on the log. The second list has the time of queue and
    prefill for each request that got a chunk.
    """
    rails, starts, prefills = [], {}, []
    for event in (record.event for record in log):
        match event:
            case Verdict():
                rails.append(event.total_ms)
            case Started():
                starts[event.request_id] = event
            case Chunk(seq=0):
                started = starts[event.request_id]
                prefills.append((event.at - started.at) / 1_000 + started.queue_ms)
    return rails, prefills


def at(values, share):
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]


async def measure(plain, governed, model, count):
    policy = load(DEFAULT_POLICY)
    classifier = JailbreakClassifier(1)
    await classifier.prepare()
    judge = await build_evaluator(policy, classifier, None, None)
    arms = {"ungoverned": [], "governed": [], "serial": []}
    refused = dict.fromkeys(arms, 0)
    async with aiohttp.ClientSession() as session:
        for turn in range(-5, count):
            number = 10 * turn + 1_000
            taken = {
                "ungoverned": await first_token_ms(session, plain.url, model, PROMPT.format(number)),
                "governed": await first_token_ms(session, governed.url, model, PROMPT.format(number + 1)),
                "serial": await judged_first_ms(
                    session, judge, plain.url, model, PROMPT.format(number + 2), number
                ),
            }  # fmt: skip
            for name, ms in taken.items():
                if turn < 0:
                    continue
                if ms is None:
                    refused[name] += 1
                else:
                    arms[name].append(ms)
    await judge.close()
    classifier.close()
    rails, prefills = from_log(await stream_log(governed.kafka))
    return arms, refused, rails, prefills


def report(arms, refused, rails, prefills):
    base = arms["ungoverned"]
    print("| arm | TTFT p50 / p95 / p99 ms | ratio p50 / p99 | refused |")
    print("|---|---|---|---|")
    for name, values in arms.items():
        print(
            f"| {name} | {at(values, 0.5):.1f} / {at(values, 0.95):.1f} / {at(values, 0.99):.1f}"
            f" | {at(values, 0.5) / at(base, 0.5):.2f} / {at(values, 0.99) / at(base, 0.99):.2f} | {refused[name]} |"
        )
    rail, prefill = statistics.median(rails), statistics.median(prefills)
    hidden = rail + at(base, 0.5) - at(arms["governed"], 0.5)
    model = governed_start(rail_ms=rail, queue_ms=0, prefill_ms=prefill)
    print(
        f"\nrails {rail:.1f} / {at(rails, 0.99):.1f} ms p50 / p99, queue and prefill {prefill:.1f} ms;"
        f" hidden {hidden:.1f} ms of {rail:.1f}, by the model {model.hidden_ms:.1f}"
    )


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.bench.governed_ttft", description=__doc__)
    parser.add_argument(
        "--requests", type=int, default=60, help="number of requests of each arm (default: %(default)s)"
    )
    parser.add_argument("--prefill-ms", type=int, default=40)
    arguments = parser.parse_args()
    model = f"fake-A-t{arguments.prefill_ms}-g10-n8"
    with ExitStack() as stack:
        url = stack.enter_context(upstream()).url
        trees = [
            stack.enter_context(
                running_tree(
                    Path(stack.enter_context(tempfile.TemporaryDirectory())),
                    "--engine", "openai", "--upstream-url", url, governed=governed,
                )
            )
            for governed in (False, True)
        ]  # fmt: skip
        report(*asyncio.run(measure(*trees, model, arguments.requests)))


if __name__ == "__main__":
    main()
