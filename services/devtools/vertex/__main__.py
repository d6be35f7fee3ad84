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
        description="Emulate Vertex AI's streamGenerateContent. The options apply to requests whose model name is no"
        " script. The script emulated-n20-ttft300, for example, means 20 words, the first after 300 ms.",
    )
    parser.add_argument(
        "--port", type=int, default=0, help="port to listen on; 0 means any free port (default: %(default)s)"
    )
    parser.add_argument(
        "--ttft-ms", type=int, default=defaults.ttft, help="time to the first word, in ms (default: %(default)s)"
    )
    parser.add_argument(
        "--tail-ms",
        type=int,
        default=defaults.tail,
        help="scale of a random delay (Lomax) added to --ttft-ms, in ms (default: %(default)s)",
    )
    parser.add_argument(
        "--gap-ms", type=int, default=defaults.gap, help="time between two words, in ms (default: %(default)s)"
    )
    parser.add_argument(
        "--words", type=int, default=defaults.n, help="number of words of an answer (default: %(default)s)"
    )
    args = parser.parse_args()
    default = EmulatorScript(n=args.words, ttft=args.ttft_ms, tail=args.tail_ms, gap=args.gap_ms)
    async with serving(VertexEmulator(default), "127.0.0.1", args.port) as port:
        say_ready(f"http://127.0.0.1:{port}")
        await asyncio.Event().wait()


if __name__ == "__main__":
    run(main, "devtools.vertex")
