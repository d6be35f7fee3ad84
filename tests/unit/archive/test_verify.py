"""Changes of an archive on disk: each is named with its place, and none is named where there is none."""

import pytest

pytest.importorskip("pyarrow")

from tests.chaos.tampering import KINDS, play
from tests.support.examples import examples


def test_random_changes_are_all_named_and_there_is_no_false_alarm():
    rounds = max(len(KINDS), examples(60))
    assert sum(play(rounds, seed=11).values()) == rounds
