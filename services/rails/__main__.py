"""Run one rails process: ``python -m services.rails``."""

import sys
from typing import Final

from services.bus import BusSettings, ensure_topics
from services.policy import BrokenPolicy
from services.policy.errors import start_error
from services.rails.settings import Settings
from services.runtime import run
from services.runtime.health import HealthSettings, serve_health
from services.runtime.process import say_ready
from services.runtime.settings import load_settings

GIL_SWITCH_S: Final = 0.0005
"""Maximum time in seconds for which a thread that reads a text may use the interpreter while the event loop waits.

With Python's default of 5 ms, a request would wait that long at each of about thirty points.
"""


async def main() -> None:
    from services.rails.service import RailsService  # here, because the classifier's processes import this file too

    sys.setswitchinterval(GIL_SWITCH_S)
    settings, bus, health = load_settings(Settings), load_settings(BusSettings), load_settings(HealthSettings)

    def on_ready() -> None:
        policy = service.policy
        say_ready(f"rails policy={policy.document.name} version={policy.version}")

    try:
        service = RailsService(settings, bus, on_ready)
        async with serve_health(health, lambda: service.ready):
            await ensure_topics(bus)
            await service.run()
    except BrokenPolicy as broken:
        raise start_error(settings.policy, broken) from None


if __name__ == "__main__":
    run(main, "rails")
