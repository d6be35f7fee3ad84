"""Test that a text that is expensive to check delays only its own tenant."""

import pytest

from services.safety.core import STEP_CHARS, SafetyCore
from services.safety.decide.check_types import CheckRequest
from services.safety.decide.run import PIECE_CHARS, SLICE_CHARS
from tests.unit.safety.world import NOW_US, RunWriter, policy, record

DEAR = "--sk-" * 200
"""A text that is expensive to check. A secret key may begin at every fifth character, so many possible matches are open
at the same time."""

PLAIN = "as was said before, nothing of this is of any interest to anybody who reads it now " * 12


SHORT = "Good day to you, and all of yours."


def reading(core, tenant):
    """Return how many characters of a tenant's answers the core has read."""
    runs = [
        run
        for partition in core._partitions.values()
        for request in partition.requests.values()
        for run in request._runs.values()
    ]
    return sum(run._scanner.position for run in runs if run.key.tenant == tenant)


def begun(text, chunks=40, streams=3):
    """Return a core whose queue has long answers of the tenant ``much``, and then a short one of the tenant ``little``.

    There are ``streams`` long answers of ``chunks`` chunks each. Every chunk has the same ``text``.
    """
    core = SafetyCore(policy(), "safety/t")
    core.gained(0)
    core.caught_up(0, NOW_US, NOW_US)
    for number in range(streams):
        for event in [(answer := RunWriter(number, tenant="much")).started(), *answer.chunks([text] * chunks)]:
            core.read(record(event), NOW_US, NOW_US)
    short = RunWriter(99, tenant="little")
    for event in short.whole([SHORT]):
        core.read(record(event), NOW_US, NOW_US)
    return core


@pytest.mark.parametrize(("text", "most"), [(PLAIN, STEP_CHARS + SLICE_CHARS), (DEAR, 3 * PIECE_CHARS)])
def test_whoever_has_little_is_dealt_with_at_once(text, most):
    core, looks = begun(text), []
    for step in range(3):
        before = reading(core, "much")
        looks += [effect for effect in core.step(NOW_US) if isinstance(effect, CheckRequest)]
        assert reading(core, "much") - before <= most, step
        if any(look.tenant == "little" and look.text == SHORT for look in looks):
            break
    else:
        pytest.fail("the short answer was still not read to its end after three steps")


def test_all_of_the_dear_text_is_read_in_the_end():
    core = begun(DEAR, chunks=2, streams=1)
    while core.busy:
        core.step(NOW_US)
    assert reading(core, "much") == 2 * len(DEAR)
