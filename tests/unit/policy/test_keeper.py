"""Hot reload: without a gap, never half an edit, and a broken policy changes nothing."""

import asyncio
import logging

import pytest

from services.policy import BrokenPolicy, Fault, Keeper
from tests.unit.policy.folders import copied, spoil


def settle(keeper):
    """Two looks at files that are still: what an edit leads to."""
    assert keeper.look() is None
    return keeper.look()


async def until(condition):
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nothing happened for 20 seconds")


def test_an_edit_gives_a_new_policy_once(tmp_path):
    folder = copied(tmp_path)
    keeper = Keeper(folder)
    assert keeper.look() is None
    spoil(folder, "policy.toml", "max_findings = 64", "max_findings = 65")
    policy = settle(keeper)
    assert policy.document.safety.max_findings == 65
    assert policy.version != keeper.current.version
    assert keeper.look() is None


def test_files_that_still_change_are_left_alone(tmp_path):
    folder = copied(tmp_path)
    keeper = Keeper(folder)
    spoil(folder, "policy.toml", "max_findings = 64", "max_findings = 65")
    assert keeper.look() is None
    spoil(folder, "policy.toml", "max_findings = 65", "max_findings = 655")
    assert keeper.look() is None
    assert keeper.look().document.safety.max_findings == 655


def test_an_edit_that_is_undone_changes_nothing(tmp_path):
    folder = copied(tmp_path)
    keeper = Keeper(folder)
    spoil(folder, "policy.toml", "max_findings = 64", "max_findings = 655")
    assert keeper.look() is None
    spoil(folder, "policy.toml", "max_findings = 655", "max_findings = 64")
    assert settle(keeper) is None


def test_a_broken_policy_is_refused_and_told_and_the_next_good_one_counts(tmp_path, caplog):
    folder = copied(tmp_path)
    keeper = Keeper(folder)
    before = keeper.current
    line = spoil(folder, "patterns/pii.toml", "{1,64}@", "+@")
    with caplog.at_level(logging.ERROR):
        assert settle(keeper) is None
    assert keeper.current is before
    assert keeper.refused is not None
    assert f"{before.version} stays: patterns/pii.toml:{line}:" in caplog.text
    (folder / "policy.toml").unlink()
    assert settle(keeper) is None
    assert keeper.current is before
    (folder / "policy.toml").write_bytes(before.files["policy.toml"])
    spoil(folder, "patterns/pii.toml", "+@", "{1,60}@")
    assert settle(keeper).version != before.version
    assert keeper.refused is None


def test_the_first_policy_must_be_good(tmp_path):
    folder = copied(tmp_path)
    spoil(folder, "policy.toml", "[rails]", "[rails")
    with pytest.raises(BrokenPolicy):
        Keeper(folder)


async def test_watching_prepares_before_it_swaps_and_keeps_the_old_one_when_that_fails(tmp_path):
    folder = copied(tmp_path)
    prepared = []
    fits = True

    async def prepare(policy):
        prepared.append((policy.version, keeper.current.version))
        if not fits:
            raise BrokenPolicy([Fault("nemo/config.yml", 0, "NeMo refuses it")])

    keeper = Keeper(folder, prepare)
    first = keeper.current.version
    watching = asyncio.create_task(keeper.watch(0.01))
    try:
        spoil(folder, "policy.toml", "max_findings = 64", "max_findings = 65")
        await until(lambda: keeper.current.version != first)
        second = keeper.current.version
        assert prepared == [(second, first)]
        fits = False
        spoil(folder, "policy.toml", "max_findings = 65", "max_findings = 66")
        await until(lambda: keeper.refused is not None)
    finally:
        watching.cancel()
    assert keeper.current.version == second
