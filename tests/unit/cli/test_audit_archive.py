"""Tests of `railbus audit` on an archive: its output, and its error messages."""

import json
import os
import shutil

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

from schemas.side_events import Detached
from schemas.stream import Closed, Recall
from schemas.topics import RECEIPTS, REQUESTS, STREAMS
from services.archive.sealing import KeyStore
from services.cli.__main__ import main
from services.cli.audit import archives, requests
from services.runtime.clock import now_ms
from tests.support.archives import make_archive, stored
from tests.support.request_events import RequestEvents


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Archive four requests and their answers. Return the archive's folder and the list of ``RequestEvents``.

    The second answer has a redacted span. The fourth answer failed.
    """
    folder = tmp_path_factory.mktemp("audit") / "archive"
    asked = [RequestEvents(tenant=tenant) for tenant in ("acme", "acme", "clinic", "acme")]
    streams = []
    for number, each in enumerate(asked):
        streams += [each.started(), *(each.chunk(seq) for seq in range(5))]
        if number == 1:
            about = each.about() | {"attempt": 1, "run": f"{each.run}/1"}
            found = {"recall_id": "a" * 32, "rule": "pii/email", "category": "email", "policy_version": "v"}
            streams.append(Recall(**about, **found, start=3, end=6, action="redact", replacement="[gone]"))
        outcome = "failed" if number == 3 else "completed"
        streams += [each.finished(4), Closed(**each.about(), outcome=outcome)]
    begin_ms = now_ms()
    records = stored([each.request for each in asked], REQUESTS.name, begin_ms=begin_ms)
    make_archive(folder, records + stored(streams, STREAMS.name, begin_ms=begin_ms), per_file=9)
    return folder, asked


def railbus(capsys, *args):
    code = main(["audit", *map(str, args)])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ((), {0, 1, 2, 3}),
        (("--rule", "pii/email"), {1}),
        (("--category", "email", "--tenant", "acme"), {1}),
        (("--outcome", "failed"), {3}),
        (("--text", "BCABCa"), {0, 1, 2, 3}),
        (("--text", "Hello", "--outcome", "completed"), {0, 1, 2}),
        (("--most", "1"), {0}),
    ],
)
def test_find(archive, capsys, options, numbers):
    folder, asked = archive
    code, out, _ = railbus(capsys, "find", "--archive", folder, "--json", *options)
    assert code == 0
    assert {json.loads(line)["request_id"] for line in out.splitlines()} == {asked[number].id for number in numbers}


def test_find_nothing(archive, capsys):
    code, out, err = railbus(capsys, "find", "--archive", archive[0], "--text", "zebra", "--from", "beginning")
    assert (code, out) == (1, "")
    assert "no request is like that" in err


def test_a_request_of_a_time_that_no_date_has_is_not_found(archive, capsys):
    code, _, err = railbus(capsys, "show", "ffffffff-ffff-7fff-bfff-ffffffffffff", "--archive", archive[0])
    assert code == 1
    assert "no event of request" in err


def test_show_and_replay(archive, capsys, tmp_path):
    folder, asked = archive
    code, out, _ = railbus(capsys, "show", asked[1].id, "--archive", folder)
    assert code == 0
    assert "replaces characters 3 to 6 by '[gone]' (email)" in out
    assert "hello" not in out
    code, out, _ = railbus(capsys, "replay", asked[1].id, "--archive", folder, "--at", "+1000000")
    assert (code, out) == (0, "abc[gone]abcabcabc\n")
    code, out, _ = railbus(capsys, "replay", asked[1].id, "--archive", folder, "--speed", "1000")
    assert "replace (email)" in out
    page = tmp_path / "page.html"
    assert railbus(capsys, "show", asked[1].id, "--archive", folder, "--html", page)[0] == 0
    text = page.read_text()
    assert asked[1].id in text
    assert "http" not in text.replace("http-equiv", "")  # the page loads nothing from other hosts
    assert "hello" not in text


def test_export(archive, capsys, tmp_path):
    folder, _ = archive
    for name in ("all.jsonl", "all.parquet"):
        assert railbus(capsys, "export", tmp_path / name, "--archive", folder)[0] == 0
        assert "wrote 37 records" in railbus(capsys, "export", tmp_path / f"2{name}", "--archive", folder)[2]
    from pyarrow.parquet import read_table

    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    table = read_table(tmp_path / "all.parquet")
    assert table.column("request_id").to_pylist() == [line["request_id"] for line in lines]
    assert set(table.column("topic").to_pylist()) == {REQUESTS.name, STREAMS.name}
    code, _, err = railbus(capsys, "export", tmp_path / "all.jsonl", "--archive", folder)
    assert (code, "the file exists" in err) == (2, True)


def test_an_interrupted_export_writes_no_file(capsys, tmp_path, monkeypatch):
    async def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(archives, "live_records", interrupted)
    assert railbus(capsys, "export", tmp_path / "all.jsonl", "--kafka", "127.0.0.1:9")[::2] == (130, "")
    assert not (tmp_path / "all.jsonl").exists()


def test_verify(archive, capsys, tmp_path):
    folder, _ = archive
    copy, anchors = tmp_path / "archive", tmp_path / "anchors.jsonl"
    shutil.copytree(folder, copy)
    key = folder.with_suffix(".pem.pub")
    code, out, err = railbus(capsys, "verify", "--archive", copy, "--public-key", key, "--write-anchors", anchors)
    assert (code, out) == (0, "37 records in 5 files: nothing was changed\n")
    assert "without --anchors" in err
    last = max(copy.glob(f"data/topic={STREAMS.name}/*/*.parquet"), key=lambda path: path.name)
    last.unlink()
    for path in copy.glob(f"checkpoints/{STREAMS.name}/0/*{last.stem[-20:]}.json"):
        path.unlink()
    assert railbus(capsys, "verify", "--archive", copy, "--public-key", key)[0] == 0
    code, out, _ = railbus(capsys, "verify", "--archive", copy, "--public-key", key, "--anchors", anchors)
    assert code == 1
    assert "railbus.streams[0] offset 27: the tail is cut off: offset 32 was archived" in out


def test_verify_prints_no_control_characters_of_a_name(archive, capsys, tmp_path):
    copy = tmp_path / "archive"
    shutil.copytree(archive[0], copy)
    forged = copy / "data" / "topic=railbus.\x1b[8m" / "day=2026-01-01"
    forged.mkdir(parents=True)
    (forged / "p00000-o00000000000000000000.parquet").touch()
    code, out, _ = railbus(capsys, "verify", "--archive", copy)
    assert (code, "\x1b" in out) == (1, False)
    assert "railbus.\ufffd[8m[0] offset 0: the file cannot be read" in out


@pytest.mark.parametrize("name", ["checkpoints/railbus.streams/0/\u00b2.json", "checkpoints/railbus.streams/\u00b2/1"])
def test_verify_reads_no_digit_that_is_no_number(archive, capsys, tmp_path, name):
    copy = tmp_path / "archive"
    shutil.copytree(archive[0], copy)
    (copy / name).parent.mkdir(exist_ok=True)
    (copy / name).touch()
    assert railbus(capsys, "verify", "--archive", copy)[0] in {0, 1}


def test_verify_as_json_names_a_file_with_an_impossible_offset(archive, capsys, tmp_path):
    copy = tmp_path / "archive"
    shutil.copytree(archive[0], copy)
    file = next(copy.glob(f"data/topic={STREAMS.name}/*/*.parquet"))
    shutil.copy(file, file.with_name(f"p00000-o{'9' * 20}.parquet"))
    code, out, _ = railbus(capsys, "verify", "--archive", copy, "--json")
    assert code == 1
    assert f"o{'9' * 20}.parquet" in json.loads(out)["tampering"][-1]["file"]


def test_verify_without_a_key_in_the_archive_is_one_sentence(archive, capsys, tmp_path):
    copy = tmp_path / "archive"
    shutil.copytree(archive[0], copy)
    (copy / "archive.json").write_text('{"format": 1, "public_key": "x"}')
    code, out, err = railbus(capsys, "verify", "--archive", copy)
    assert (code, out) == (2, "")
    assert "names no public key any more: give its key with --public-key" in err


@pytest.mark.parametrize("action", ["find", "show", "export"])
@pytest.mark.parametrize(
    "change", [lambda content: content[:100], lambda content: content[:20] + bytes(600) + content[620:]]
)
def test_a_damaged_file_is_one_sentence(archive, capsys, tmp_path, action, change):
    folder, asked = archive
    copy = tmp_path / "archive"
    shutil.copytree(folder, copy)
    for path in copy.glob("data/*/*/*.parquet"):
        path.write_bytes(change(path.read_bytes()))
    named = {"find": (), "show": (asked[0].id,), "export": (tmp_path / "all.jsonl",)}[action]
    code, out, err = railbus(capsys, action, *named, "--archive", copy)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"the archive cannot be read: {copy}" in err


@pytest.mark.parametrize("action", ["find", "verify"])
def test_a_name_that_is_not_utf_8_is_one_sentence(archive, capsys, tmp_path, action):
    copy = tmp_path / "archive"
    shutil.copytree(archive[0], copy)
    (copy / "data" / os.fsdecode(b"\xff")).touch()
    code, out, err = railbus(capsys, action, "--archive", copy)
    assert (code, out) == (2, "")
    assert "a file in data has a name that is not UTF-8: remove it" in err


def test_replay_shows_no_control_characters_on_a_terminal(archive, capsys, monkeypatch):
    folder, asked = archive
    monkeypatch.setattr(requests, "visible_at", lambda *_: "\x1b[2Ja\nb")
    for on_terminal, shown in ((False, "\x1b[2Ja\nb\n"), (True, "\ufffd[2Ja\nb\n")):
        monkeypatch.setattr("sys.stdout.isatty", lambda on=on_terminal: on)
        assert railbus(capsys, "replay", asked[0].id, "--archive", folder, "--at", "+0") == (0, shown, "")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("find", "--archive", "nowhere"), "there is no archive at nowhere"),
        (
            ("export", "x.csv", "--archive", "{archive}"),
            "railbus audit: x.csv: the name must end with .parquet or .jsonl",
        ),
        (
            ("export", "no/x.jsonl", "--archive", "{archive}"),
            "no/x.jsonl cannot be written (No such file or directory)",
        ),
        (("verify", "--archive", "{archive}", "--public-key", "nowhere"), "--public-key nowhere"),
        (
            ("verify", "--archive", "{archive}", "--anchors", "{archive}/archive.json"),
            "has a line that is no checkpoint",
        ),
        (("find", "--archive", "{archive}", "--from", "soon"), "--from 'soon' is no moment"),
        (("find", "--archive", "{archive}", "--most", "-1"), "--most -1: must be 1 or more"),
        (("replay", "{id}", "--archive", "{archive}", "--at", "later"), "--at 'later': write +1500"),
        (("replay", "{id}", "--archive", "{archive}", "--at", "+\u00b2"), "--at '+\u00b2': write +1500"),
        (
            ("replay", "{id}", "--archive", "{archive}", "--at", "9999-12-31T23:59:59-01:00"),
            "--at '9999-12-31T23:59:59-01:00': write +1500",
        ),
        (("replay", "{id}", "--archive", "{archive}", "--speed", "0"), "--speed 0: must be more than 0"),
        (("forget", "--keys", "nowhere", "--tenant", "acme"), "the key store nowhere does not exist"),
        (("show", "{id}", "--plain-token-ms", "0"), "--plain-token-ms 0: must be between 0 and 60000"),
        (("find", "--archive", "no-such-scheme://x"), "the archive no-such-scheme://x"),
    ],
)
def test_a_mistake_is_one_sentence(archive, capsys, args, said):
    folder, asked = archive
    code, out, err = railbus(capsys, *(arg.format(archive=folder, id=asked[0].id) for arg in args))
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_request_that_is_not_there(archive, capsys):
    code, _, err = railbus(capsys, "show", "019a8c1f-0000-7000-8000-000000000000", "--archive", archive[0])
    assert code == 1
    assert "check the id" in err


def test_a_request_whose_records_are_sealed_is_not_judged(tmp_path, capsys):
    each, folder, keys = RequestEvents(), tmp_path / "archive", tmp_path / "keys.db"
    begin_ms = now_ms()
    streams = [each.started(), *(each.chunk(seq) for seq in range(5)), each.finished(4)]
    streams.append(Closed(**each.about(), outcome="completed"))
    receipt = Detached(**each.about(), connection="c", reason="complete", ops=1, ops_hash="0" * 64)
    records = [
        *stored([each.request], REQUESTS.name, begin_ms=begin_ms),
        *stored(streams, STREAMS.name, begin_ms=begin_ms),
        *stored([receipt], RECEIPTS.name, begin_ms=begin_ms),
    ]
    make_archive(folder, records, seal_keys=KeyStore(keys, create=True))
    page = tmp_path / "page.html"
    for options in ((), ("--html", page)):
        code, out, err = railbus(capsys, "show", each.id, "--archive", folder, *options)
        out += page.read_text() if options else ""
        assert code == 0
        assert "sealed" in out
        assert "sealed and left out" in err
        assert "other ops than" not in out
        assert "not closed" not in out
    code, _, err = railbus(capsys, "replay", each.id, "--archive", folder, "--at", "+1000000")
    assert code == 2
    assert "without the sealed records" in err
    _, out, err = railbus(capsys, "show", each.id, "--archive", folder, "--keys", keys)
    assert "other ops than" in out
    assert err == ""
