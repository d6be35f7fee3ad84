"""Test that an edited policy replaces the old one only if the edit is finished, valid, and accepted by ``prepare``."""

import asyncio
import logging
import subprocess
from unittest.mock import Mock

import pytest

from services.policy import BrokenPolicy, PolicyFault, PolicyReloader
from services.policy.reloader import RETRY_S
from services.runtime.metrics import POLICY_REFUSED
from tests.support.policies import copy_policy, replace_in_file
from tests.support.waiting import until

pytestmark = pytest.mark.slow  # each policy that is read is tried in a process of its own first


def settle(reloader):
    """Poll twice, and return the second result. The first poll notices an edit, and the second loads it."""
    assert reloader.poll() is None
    return reloader.poll()


def test_an_edit_gives_a_new_policy_once(tmp_path):
    folder = copy_policy(tmp_path)
    reloader = PolicyReloader(folder)
    assert reloader.poll() is None
    replace_in_file(folder, "policy.toml", "max_findings = 64", "max_findings = 65")
    policy = settle(reloader)
    assert policy.document.safety.max_findings == 65
    assert policy.version != reloader.current.version
    assert reloader.poll() is None


def test_files_that_still_change_are_left_alone(tmp_path):
    folder = copy_policy(tmp_path)
    reloader = PolicyReloader(folder)
    replace_in_file(folder, "policy.toml", "max_findings = 64", "max_findings = 65")
    assert reloader.poll() is None
    replace_in_file(folder, "policy.toml", "max_findings = 65", "max_findings = 655")
    assert reloader.poll() is None
    assert reloader.poll().document.safety.max_findings == 655


def test_an_edit_that_is_undone_changes_nothing(tmp_path):
    folder = copy_policy(tmp_path)
    reloader = PolicyReloader(folder)
    replace_in_file(folder, "policy.toml", "max_findings = 64", "max_findings = 655")
    assert reloader.poll() is None
    replace_in_file(folder, "policy.toml", "max_findings = 655", "max_findings = 64")
    assert settle(reloader) is None


def test_a_broken_policy_is_refused_and_told_and_the_next_good_one_counts(tmp_path, caplog):
    folder = copy_policy(tmp_path)
    reloader = PolicyReloader(folder)
    before = reloader.current
    line = replace_in_file(folder, "patterns/pii.toml", "{1,64}@", "+@")
    with caplog.at_level(logging.ERROR):
        assert settle(reloader) is None
    assert reloader.current is before
    assert reloader.refused is not None
    assert f"{before.version} stays in force: patterns/pii.toml:{line}:" in caplog.text
    (folder / "policy.toml").unlink()
    assert settle(reloader) is None
    assert reloader.current is before
    (folder / "policy.toml").write_bytes(before.files["policy.toml"])
    replace_in_file(folder, "patterns/pii.toml", "+@", "{1,60}@")
    assert settle(reloader).version != before.version
    assert reloader.refused is None


@pytest.mark.parametrize("trouble", ["no process", "busy"])
def test_a_policy_refused_for_a_passing_reason_is_tried_again(trouble, tmp_path, monkeypatch):
    folder = copy_policy(tmp_path)
    reloader = PolicyReloader(folder)
    replace_in_file(folder, "policy.toml", "max_findings = 64", "max_findings = 65")

    def fail(*_, **__):
        if trouble == "no process":
            raise BlockingIOError(11, "Resource temporarily unavailable")
        raise subprocess.TimeoutExpired("python", 60)

    with monkeypatch.context() as patched:
        patched.setattr("services.policy.trial.subprocess.run", fail)
        assert settle(reloader) is None
    assert reloader.refused is not None
    assert reloader.poll() is None
    monkeypatch.setattr(reloader, "_again_s", reloader._again_s - RETRY_S)
    assert reloader.poll().document.safety.max_findings == 65
    assert reloader.refused is None
    assert reloader.poll() is None


def test_the_pauses_between_tries_grow_until_the_files_change(tmp_path, monkeypatch):
    folder = copy_policy(tmp_path)
    reloader = PolicyReloader(folder)
    monkeypatch.setattr("services.policy.trial.subprocess.run", Mock(side_effect=BlockingIOError(11, "busy")))
    monkeypatch.setattr("services.policy.reloader.time.monotonic", lambda: 0.0)
    pauses, counted = [], POLICY_REFUSED._value.get()
    for edit in (65, 66):
        replace_in_file(folder, "policy.toml", f"max_findings = {edit - 1}", f"max_findings = {edit}")
        assert settle(reloader) is None
        for _ in range(8):
            pauses.append(reloader._again_s)
            reloader._again_s = 0.0
            assert reloader.poll() is None
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600] * 2
    assert POLICY_REFUSED._value.get() == counted + 2  # each edit counts once


def test_the_first_policy_must_be_good(tmp_path):
    folder = copy_policy(tmp_path)
    replace_in_file(folder, "policy.toml", "[rails]", "[rails")
    with pytest.raises(BrokenPolicy):
        PolicyReloader(folder)


async def test_watching_prepares_before_it_swaps_and_keeps_the_old_on_failure(tmp_path):
    folder = copy_policy(tmp_path)
    prepared = []
    fits = True

    async def prepare(policy):
        prepared.append((policy.version, reloader.current.version))
        if not fits:
            raise BrokenPolicy([PolicyFault("nemo/config.yml", 0, "NeMo rejects it")])

    reloader = PolicyReloader(folder, prepare)
    first = reloader.current.version
    watching = asyncio.create_task(reloader.watch(0.01))
    try:
        replace_in_file(folder, "policy.toml", "max_findings = 64", "max_findings = 65")
        await until(lambda: reloader.current.version != first)
        second = reloader.current.version
        assert prepared == [(second, first)]
        fits = False
        replace_in_file(folder, "policy.toml", "max_findings = 65", "max_findings = 66")
        await until(lambda: reloader.refused is not None)
    finally:
        watching.cancel()
    assert reloader.current.version == second


DEEP = 1_500
NESTED = {
    "patterns/deep.toml": b"deep = " + b"[" * DEEP + b"]" * DEEP,
    "rego/data.json": b'{"deep": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "nemo/deep.yml": b"[" * DEEP + b"]" * DEEP,
}


@pytest.mark.parametrize("name", NESTED)
async def test_deeply_nested_file_is_an_ordinary_refused_policy(name, tmp_path, caplog):
    folder = copy_policy(tmp_path)
    reloader = PolicyReloader(folder)
    before = reloader.current
    (folder / name).write_bytes(NESTED[name])
    with caplog.at_level(logging.ERROR):
        watching = asyncio.create_task(reloader.watch(0.01))
        await until(lambda: "stays in force" in caplog.text or watching.done())
        assert not watching.done(), "the service would end"
        watching.cancel()
    assert reloader.current is before
    assert caplog.text.count("stays in force") == 1
    assert "nested too deeply" in caplog.text
    with pytest.raises(BrokenPolicy, match="nested too deeply"):
        PolicyReloader(folder)


async def test_whatever_preparing_a_policy_raises_refuses_it(tmp_path):
    folder = copy_policy(tmp_path)

    async def prepare(_):
        raise ZeroDivisionError("no such thing")

    reloader = PolicyReloader(folder, prepare)
    before = reloader.current
    watching = asyncio.create_task(reloader.watch(0.01))
    replace_in_file(folder, "policy.toml", "max_findings = 64", "max_findings = 65")
    await until(lambda: reloader.refused is not None or watching.done())
    assert not watching.done()
    watching.cancel()
    assert reloader.current is before
    assert "ZeroDivisionError" in str(reloader.refused)
