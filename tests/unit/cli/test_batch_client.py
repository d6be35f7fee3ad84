"""Tests of how the input of a job is stored before the job is created."""

import errno
from functools import partial
from types import SimpleNamespace

import pytest

from services.cli.batch.client import input_file_id, store_input
from services.cli.batch.inputs import InputOptions, write_lines
from services.cli.batch.runner import JobInput, JobOptions, submit
from services.jobs.prepare import JobLines
from services.jobs.store import FolderStore
from services.runtime.errors import UserError
from tests.unit.batch.world import BATCH_ID


def test_a_run_that_is_repeated_before_its_job_has_its_new_options(tmp_path):
    path, store = tmp_path / "prompts.txt", FolderStore(tmp_path / "batch")
    path.write_text("Why?\n", encoding="utf-8")
    for model in ("first", "the second"):
        write = partial(write_lines, path, InputOptions(body={"model": model}))
        store_input(store, BATCH_ID, path.name, write)
        lines = JobLines(store, BATCH_ID, input_file_id(BATCH_ID))
        assert lines.line(0).model == model
        lines.close()


async def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    path, store = tmp_path / "prompts.txt", FolderStore(tmp_path / "batch")
    path.write_text("Why?\n", encoding="utf-8")

    def denied(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(store, "writing", denied)
    given = JobInput(source=path, write=partial(write_lines, path, InputOptions(body={})))
    options = JobOptions(window_open=1, line_attempts=1, completion_ms=1)
    with pytest.raises(UserError, match=r"RAILBUS_BATCH_DIR.*Permission denied"):
        await submit(SimpleNamespace(store=store), BATCH_ID, given, options)
