"""``python -m services.devtools.vertex``: an emulated Vertex AI on loopback until SIGTERM or SIGINT."""

import argparse
import asyncio
import sys

from services.devtools.vertex.script import Script
from services.devtools.vertex.server import Emulator, serving
from services.runtime.process import run


async def main() -> None:
    """Serves until cancelled."""
    usual = Script()
    parser = argparse.ArgumentParser(
        prog="python -m services.devtools.vertex",
        description="Emulates Vertex AI's streamGenerateContent. A model's name scripts it: emulated-n20-ttft300",
    )
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one (%(default)s)")
    parser.add_argument("--ttft-ms", type=int, default=usual.ttft, help="first word after (%(default)s)")
    parser.add_argument("--tail-ms", type=int, default=usual.tail, help="and a heavy tail of this scale (%(default)s)")
    parser.add_argument("--gap-ms", type=int, default=usual.gap, help="between words (%(default)s)")
    parser.add_argument("--words", type=int, default=usual.n, help="in an answer (%(default)s)")
    given = parser.parse_args()
    default = Script(n=given.words, ttft=given.ttft_ms, tail=given.tail_ms, gap=given.gap_ms)
    async with serving(Emulator(default), "127.0.0.1", given.port) as port:
        sys.stdout.write(f"ready http://127.0.0.1:{port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    run(main, "devtools.vertex")
