"""Run the ledger: ``python -m services.ledger``."""

import os
import secrets
import sys

from aiohttp import web

from services.bus import ensure_topics, wanted_replication
from services.ledger.settings import Settings
from services.runtime import health, process, settings
from services.runtime.errors import UserError

DEFAULT_WINDOW_S = 3_600


async def main() -> None:
    try:
        from services.ledger.service import LedgerService
    except ModuleNotFoundError as error:
        if error.name not in {"faust", "mode"}:
            raise
        raise UserError("the ledger needs faust-streaming: pip install 'railbus[faust]'") from None

    own = settings.load_settings(Settings, os.environ)
    await ensure_topics(own.bus)  # Faust needs existing topics
    service = LedgerService(own, f"ledger/{secrets.token_hex(3)}", _say_ready, copies=await wanted_replication(own.bus))

    async def ledger(request: web.Request) -> web.Response:
        text = request.query.get("seconds", str(DEFAULT_WINDOW_S))
        seconds = settings.parse_count(text, own.ledger_show_s)
        if seconds is None:
            message = f"seconds={text[:20]}: must be a whole number between 1 and {own.ledger_show_s}\n"
            return web.Response(text=message, status=400)
        return web.Response(body=service.report(seconds), content_type="application/json")

    routes = [web.get("/ledger", ledger)]
    async with health.serve_health(own.health, lambda: service.ready, routes):
        await service.run()


def _say_ready() -> None:
    sys.stdout.write("ready ledger\n")
    sys.stdout.flush()


if __name__ == "__main__":
    process.run(main, "ledger")
