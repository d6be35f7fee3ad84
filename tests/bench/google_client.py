"""Compare the CPU time of a call to Vertex AI: with Google's typed client method, and with Railbus's own engine.

    python -m tests.bench.google_client [--calls 100] [--rounds 4]

Railbus's engine calls private methods of Google's client instead of the typed method. The CPU time is that of this
process. The emulator of Vertex AI, a separate process, answers each call with 20 frames at once. The two variants take
turns. The figures are medians over the rounds.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import time

import aiohttp
from google.genai import Client, types
from google.oauth2.credentials import Credentials

from schemas.requests import Message, Sampling
from services.vertex.engine import VertexEngine
from services.vertex.settings import VertexSettings
from services.worker.engine import Job

MODEL, FRAMES, PROMPT = "emulated-n20-ttft0-gap0", 20, "Say something."


async def main(given, url):
    engine = VertexEngine(VertexSettings(vertex_url=url, vertex_model=MODEL))
    await engine.start()
    job = Job(
        request_id="r", run="r", model=MODEL, messages=(Message(role="user", content=PROMPT),),
        sampling=Sampling(max_tokens=64),
    )  # fmt: skip
    async with aiohttp.ClientSession() as session:
        options = types.HttpOptions(aiohttp_client=session, base_url=url)
        google = Client(
            vertexai=True, credentials=Credentials(token="emulated"), project="p", location="global",
            http_options=options,
        )  # fmt: skip

        async def typed():
            stream = await google.aio.models.generate_content_stream(model=MODEL, contents=PROMPT)
            return [frame async for frame in stream]

        async def ours():
            return [step async for step in engine.generate(job)]

        spent = {typed: [], ours: []}
        for turn in range(given.rounds + 1):
            for arm in list(spent)[:: -1 if turn % 2 else 1]:
                begun = time.process_time()
                for _ in range(given.calls):
                    assert len(await arm()) >= FRAMES
                if turn:  # the first round warms up
                    spent[arm].append((time.process_time() - begun) * 1e3 / given.calls)
    await engine.close()
    for arm, values in spent.items():
        print(f"{arm.__name__}: {statistics.median(values):.2f} ms of CPU a call of {FRAMES} frames")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    emulator = subprocess.Popen([sys.executable, "-m", "services.devtools.vertex"], stdout=subprocess.PIPE, text=True)
    try:
        asyncio.run(main(given, emulator.stdout.readline().split()[1]))
    finally:
        emulator.terminate()
        emulator.wait(10)
