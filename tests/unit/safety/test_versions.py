"""Test that safety keeps only the checks of the ``MAX_VERSIONS`` most recently activated policy versions."""

from services.bus import BusSettings
from services.policy import build
from services.safety.service import MAX_VERSIONS, SafetyService
from services.safety.settings import Settings
from tests.unit.safety.world import policy


class Check:
    closed = False

    async def find(self, text):
        return ()

    async def close(self):
        self.closed = True


def edited(number):
    files = dict(policy().files)
    files["policy.toml"] += b"# edit %d" % number
    return build(files)


async def test_a_version_that_was_taken_back_into_use_is_closed_last():
    made = {}

    async def check(held):
        return made.setdefault(held.version, Check())

    service = SafetyService(Settings(), BusSettings(), {1: check, 2: check}, lambda: None)
    good, edits = policy(), [edited(number) for number in range(MAX_VERSIONS)]
    for edit in edits:  # each edit is tried, and taken back
        await service._prepare(good)
        await service._prepare(edit)
    assert [version for version, held in made.items() if held.closed] == [edits[0].version]
