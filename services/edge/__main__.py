"""Start one edge process: ``python -m services.edge``."""

import os

from services.edge.service import EdgeService
from services.edge.settings import Settings
from services.runtime import process, settings
from services.runtime.process import return_large_blocks, say_ready


async def main() -> None:
    await EdgeService(settings.load_settings(Settings, os.environ)).run(_say_ready)


def _say_ready(url: str) -> None:
    say_ready(f"edge {url}")


if __name__ == "__main__":
    return_large_blocks()  # because clients may send large bodies
    process.run(main, "edge")
