"""``python -m services.edge``: one edge process."""

import os
import sys

from services.edge.service import EdgeService
from services.edge.settings import Settings
from services.runtime import process, settings


async def main() -> None:
    """Serve until the process is stopped."""
    await EdgeService(settings.load_settings(Settings, os.environ)).run(_say_ready)


def _say_ready(url: str) -> None:
    sys.stdout.write(f"ready edge {url}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    process.run(main, "edge")
