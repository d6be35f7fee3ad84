"""Test that folding the archived events gives every byte that clients received, and the hash of every receipt."""

import json

import pytest

from services.policy import DEFAULT_POLICY
from tests.chaos.replay import play, tree_with_archive
from tests.support.waiting import wait_until

pytest.importorskip("pyarrow")

pytestmark = pytest.mark.slow


async def test_a_folded_archive_gives_what_was_sent_and_every_receipts_hash(tmp_path):
    with tree_with_archive(tmp_path) as tree:
        found = await play(tree, tmp_path / "archive", requests=40, at_once=8, seed=3)
        assert found.wrong == []
        assert (found.requests, min(found.resumes, found.recalls, found.cutovers) > 0) == (40, True), found

        key, anchors = tmp_path / "archive-key.pem.pub", tmp_path / "archive-anchors.jsonl"
        options = ("--archive", str(tmp_path / "archive"))
        checked = tree.railbus("audit", "verify", *options, "--public-key", str(key), "--anchors", str(anchors))
        assert (checked.returncode, checked.stderr) == (0, ""), checked
        recalled = tree.railbus("audit", "find", *options, "--category", "email", "--json")
        assert recalled.returncode == 0, recalled
        ids = [json.loads(line)["request_id"] for line in recalled.stdout.splitlines()]
        shows = "replaces characters"  # not where the text was taken back before it was on a screen
        request_id = next(each for each in ids if shows in tree.railbus("audit", "show", each).stdout)
        shown = {}

        def same() -> bool:  # the account may be on the log a moment before it is archived
            shown.update(
                live=tree.railbus("audit", "show", request_id).stdout,
                kept=tree.railbus("audit", "show", request_id, *options).stdout,
            )
            return shown["live"] == shown["kept"]

        wait_until(same, "the archive has all of it")
        assert shows in shown["kept"]
        done = tree.railbus("audit", "rejudge", "--policy", str(DEFAULT_POLICY), *options, "--json", timeout=120)
        told = json.loads(done.stdout)
        assert told["unchecked"] or (done.returncode, told["differences"]) == (0, []), done
        assert told["same"] + told["unchecked"] >= found.recalls
