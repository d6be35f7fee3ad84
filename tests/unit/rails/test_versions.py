"""Test which evaluator is closed when a process has evaluators of too many policy versions."""

from services.bus import BusSettings
from services.rails import service as service_module
from services.rails.service import MAX_VERSIONS, RailsService
from services.rails.settings import Settings
from tests.unit.rails.world import policy


async def test_a_version_that_was_taken_back_into_use_is_closed_last(monkeypatch):
    closed = []

    class Evaluator:
        def __init__(self, held):
            self.version = held.version

        async def close(self):
            closed.append(self.version)

    async def prepare(_):
        return None

    async def build_evaluator(held, *_):
        return Evaluator(held)

    monkeypatch.setattr(service_module, "build_evaluator", build_evaluator)
    monkeypatch.setattr(service_module.JailbreakClassifier, "prepare", prepare)
    service = RailsService(Settings(), BusSettings(), lambda: None)
    good = policy()
    edits = [
        policy(("policy.toml", "max_findings = 64", f"max_findings = {64 + n}")) for n in range(1, MAX_VERSIONS + 1)
    ]
    for edit in edits:  # each edit is tried, and taken back
        await service._prepare(good)
        await service._prepare(edit)
    assert closed == [edits[0].version]
