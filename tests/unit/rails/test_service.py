"""Test when a rails process says that it is ready, and how it ends if its policy cannot be used."""

import asyncio

import pytest

from services.bus import BusSettings
from services.policy import BrokenPolicy, PolicyFault
from services.rails import __main__ as rails_main
from services.rails import service as service_module
from services.rails.service import RailsService
from services.rails.settings import Settings
from services.runtime import UserError
from services.runtime.errors import UnavailableError
from tests.support.waiting import until


class Lane:
    """A simulated processor. Like the real one, it calls ``on_ready`` once."""

    def __init__(self, *_, on_ready=None, **__):
        self.ready = False
        self._on_ready = on_ready

    def become_ready(self):
        self.ready = True
        on_ready, self._on_ready = self._on_ready, None
        if on_ready is not None:
            on_ready()

    async def run(self):
        await asyncio.Event().wait()


class Evaluator:
    async def close(self):
        pass


async def test_a_lane_that_was_ready_too_early_does_not_keep_it_from_being_ready(monkeypatch):
    async def build_evaluator(*_):
        return Evaluator()

    async def prepare(_):
        return None

    monkeypatch.setattr(service_module, "Processor", Lane)
    monkeypatch.setattr(service_module, "build_evaluator", build_evaluator)
    monkeypatch.setattr(service_module.JailbreakClassifier, "prepare", prepare)
    told = []
    service = RailsService(Settings(), BusSettings(), lambda: told.append("ready"))
    running = asyncio.create_task(service.run())
    first, second = service._lanes
    first.become_ready()
    first.ready = False  # its session with the broker restarts
    second.become_ready()
    await asyncio.sleep(0.2)
    assert told == []
    first.become_ready()
    await until(lambda: told, within_s=5)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert told == ["ready"]


@pytest.mark.parametrize(
    ("temporary", "forbidden", "kind"),
    [(True, False, UnavailableError), (True, True, UserError), (False, False, UserError)],
)
async def test_only_what_the_user_must_correct_is_a_mistake_of_the_user(temporary, forbidden, kind, monkeypatch):
    def refuse(*_):
        raise BrokenPolicy([PolicyFault(".", 0, "no memory")], temporary=temporary, forbidden=forbidden)

    monkeypatch.setattr(service_module, "RailsService", refuse)
    monkeypatch.setattr(rails_main.sys, "setswitchinterval", lambda _: None)
    with pytest.raises(kind, match=r"RAILBUS_POLICY=.*: \.:0: no memory"):
        await rails_main.main()
