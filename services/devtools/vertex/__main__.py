"""``python -m services.devtools.vertex``: run the Vertex AI emulator on loopback until SIGTERM or SIGINT."""

import argparse
import asyncio

from services.devtools.vertex.script import EmulatorScript
from services.devtools.vertex.server import VertexEmulator, serving
from services.runtime.process import run, say_ready


async def main() -> None:
    defaults = EmulatorScript()
    parser = argparse.ArgumentParser(
        prog="python -m services.devtools.vertex",
        description="Emulate Vertex AI's streamGenerateContent. A model's name scripts it: emulated-n20-ttft300",
    )
    parser.add_argument("--port", type=int, default=0, help="port to listen on, 0 = any free one (%(default)s)")
    parser.add_argument("--ttft-ms", type=int, default=defaults.ttft, help="time to the first word (%(default)s)")
    parser.add_argument("--tail-ms", type=int, default=defaults.tail, help="scale of its heavy tail (%(default)s)")
    parser.add_argument("--gap-ms", type=int, default=defaults.gap, help="time between words (%(default)s)")
    parser.add_argument("--words", type=int, default=defaults.n, help="words in an answer (%(default)s)")
    args = parser.parse_args()
    default = EmulatorScript(n=args.words, ttft=args.ttft_ms, tail=args.tail_ms, gap=args.gap_ms)
    async with serving(VertexEmulator(default), "127.0.0.1", args.port) as port:
        say_ready(f"http://127.0.0.1:{port}")
        await asyncio.Event().wait()


if __name__ == "__main__":
    run(main, "devtools.vertex")
