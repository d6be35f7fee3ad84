"""``python -m services.router``: one router process."""

import os
import secrets
import sys

from services.bus import ensure_topics
from services.router.settings import Settings
from services.router.shell import Shell
from services.runtime import health, process, settings


async def main() -> None:
    """Routes until the process is told to stop."""
    own = settings.load(Settings, os.environ)
    await ensure_topics(own.bus)
    shell = Shell(own, f"router/{secrets.token_hex(3)}", _say_ready)
    async with health.serving(own.health, shell.ready):
        await shell.run()


def _say_ready() -> None:
    sys.stdout.write("ready router\n")
    sys.stdout.flush()


if __name__ == "__main__":
    process.run(main, "router")
