"""Test that an edit of a policy's request classes takes effect, unless the edit is unfinished or invalid."""

import asyncio
import logging

import pytest

from services.runtime.classes.class_reloader import ClassReloader
from services.runtime.errors import UserError
from tests.support.waiting import until

FIRST = "[deadlines]\ntotal_ms = [500, 60000]\n"
MORE = FIRST + "[classes.express]\npriority = 1\n"
WRONG = FIRST + "[classes.express]\nlane = 'fast'\n"
LONGER = "[deadlines]\ntotal_ms = [500, 60001]\n"


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, FIRST)
    return tmp_path


def write(folder, text):
    """Replace ``policy.toml`` by a new file with this text, as editors do."""
    (folder / "new.tmp").write_text(text)
    (folder / "new.tmp").replace(folder / "policy.toml")


def settle(reloader):
    """Poll twice, because the first poll after an edit returns None. Adopt and return the new classes, if any."""
    assert reloader.poll() is None
    classes = reloader.poll()
    if classes is not None:
        reloader.adopt(classes)
    return classes


def test_an_edit_counts_once_and_when_it_is_finished(folder):
    reloader = ClassReloader(folder, "test")
    assert reloader.poll() is None
    write(folder, WRONG)
    assert reloader.poll() is None
    write(folder, MORE)
    assert settle(reloader) is not None
    assert "express" in reloader.current.names
    assert reloader.poll() is None


@pytest.mark.parametrize("text", [WRONG, LONGER, "[classes", None])
def test_what_cannot_be_used_changes_nothing_and_is_told_once(folder, text, caplog):
    reloader = ClassReloader(folder, "test")
    before = reloader.current
    if text is None:
        (folder / "policy.toml").unlink()
    else:
        write(folder, text)
    with caplog.at_level(logging.ERROR):
        settle(reloader)
    assert reloader.poll() is None
    assert reloader.current is before
    assert len([line for line in caplog.messages if "stay as they were" in line and "policy.toml" in line]) == 1
    write(folder, MORE)
    settle(reloader)
    assert "express" in reloader.current.names


def test_who_applies_them_may_refuse(folder):
    seen = []

    def apply(classes):
        seen.append(classes)
        raise UserError("RAILBUS_TTFT_MIN_MS contradicts it")

    reloader = ClassReloader(folder, "test", apply)
    before = reloader.current
    write(folder, MORE)
    assert settle(reloader) is seen[0]
    assert reloader.current is before


async def test_it_watches(folder):
    applied = []
    reloader = ClassReloader(folder, "test", applied.append)
    watching = asyncio.create_task(reloader.watch(0.01))
    write(folder, MORE)
    await until(lambda: "express" in reloader.current.names, "the class is read")
    assert applied == [reloader.current]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
