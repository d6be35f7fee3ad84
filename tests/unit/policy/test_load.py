"""Test that a policy is loaded completely or not at all, and that every fault is reported with its file and line."""

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from services.policy import BrokenPolicy, PolicyFault, PolicyReloader, RulingError, find_all, load, read_ruling
from services.policy.lint import lint
from services.policy.source.depth import MAX_DATA_DEPTH, MAX_REGO_DEPTH, data_depth_fault, rego_depth_fault
from services.policy.source.files import MAX_FILES, read_files, version_of
from services.policy.source.nemo_config import has_rails
from tests.support.policies import ROOT, copy_policy, replace_in_file


def faults(folder):
    with pytest.raises(BrokenPolicy) as broken:
        load(folder)
    assert lint(folder) == broken.value.faults
    assert str(broken.value).splitlines() == [str(fault) for fault in broken.value.faults]
    return broken.value.faults


@pytest.mark.parametrize("name", ["default", "strict"])
def test_the_shipped_policies_are_without_fault(name):
    assert lint(ROOT / "policies" / name) == ()


@pytest.mark.parametrize(
    ("path", "old", "new", "says"),
    [
        ("policy.toml", "deadline_ms = 150", "deadline_ms = 0", "rails.deadline_ms"),
        ("policy.toml", "deadline_ms = 150", "deadline = 150", "unknown field"),
        ("policy.toml", "stride_chars = 48", 'stride_chars = "many"', "safety.windows.stride_chars"),
        ("policy.toml", "stride_chars = 48", "stride_chars = 321", "context_chars = 320 is less than stride_chars"),
        ("policy.toml", 'name = "jailbreak"', 'name = "horoscope"', "rails.rail[3].name"),
        ("policy.toml", 'name = "pii"', 'name = "secrets"', "is named twice"),
        ("policy.toml", "[deadlines]", "[deadlines", "Expected"),
        ("patterns/pii.toml", "{1,64}@", "+@", "no upper bound"),
        ("patterns/pii.toml", "max_chars = 345", "max_chars = 200", "345 characters long"),
        ("patterns/pii.toml", 'validator = "luhn"', 'validator = "mod11"', "pattern[2].validator"),
        ("patterns/pii.toml", 'name = "pii/us_ssn"', 'name = "pii/email"', "taken by another"),
        ("patterns/blocklist.toml", '"synthesize sarin",', '"sarin",', "folded needs words"),
        ("rego/admission.rego", "count(reasons) == 0,", "count(reasons) == ,", "expecting"),
        ("rego/findings.rego", "if input.category in", "if category in", "unsafe"),
        ("rego/findings.rego", "object.get(tenant,", "object.gett(tenant,", "nknown function"),
        ("rego/data.json", '"enabled": true,', '"enabled": true', "delimiter"),
        ("nemo/config.yml", "  output:", "  output: [", "expected"),
    ],
)
def test_a_fault_has_its_file_and_line(tmp_path, path, old, new, says):
    folder = copy_policy(tmp_path)
    line = replace_in_file(folder, path, old, new)
    (fault,) = faults(folder)
    assert fault.path == path
    # A list is named by its first line, and a parser tells what it missed when it comes to the next thing.
    assert line - 3 <= fault.line <= line + 2, f"{fault} should be about line {line}"
    assert says in fault.message


def test_an_own_rail_among_nemos_input_flows_is_refused_with_the_remedy(tmp_path):
    folder = copy_policy(tmp_path)
    older = "  input:\n    parallel: true\n    flows:\n      - railbus pii\n      - 'railbus secrets'\n      - my own\n"
    line = replace_in_file(folder, "nemo/config.yml", "  output:\n", older + "  output:\n")
    remedy = "policy.toml names Railbus's own input rails"
    assert faults(folder) == (
        PolicyFault("nemo/config.yml", line + 3, f"remove 'railbus pii': {remedy}"),
        PolicyFault("nemo/config.yml", line + 4, f"remove 'railbus secrets': {remedy}"),
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", False),
        ("rails: {}", False),
        ("rails: {input: {flows: []}}", False),
        ("rails: {output: {flows: [a]}}", False),
        ("rails: {input: {flows: [a]}}", True),
        ("rails: {input: [a]}", True),  # not of NeMo's form: for NeMo to refuse
    ],
)
def test_nemo_is_wanted_only_where_it_has_rails_to_run(body, expected):
    assert has_rails({"nemo/config.yml": body.encode()}, "input") is expected


@pytest.mark.parametrize("body", ["- a\n", "rails:\n", "rails: [input]\n", "text\n"])
def test_a_configuration_of_nemo_that_services_refuse_is_a_fault(body, tmp_path):
    folder = copy_policy(tmp_path)
    (folder / "nemo/config.yml").write_text(body)
    assert faults(folder) == (PolicyFault("nemo/config.yml", 1, "must be a mapping with 'rails'"),)


def test_all_faults_are_told_at_once(tmp_path):
    folder = copy_policy(tmp_path)
    replace_in_file(folder, "policy.toml", 'stop = "', 'halt = "')
    replace_in_file(folder, "patterns/pii.toml", "{1,64}@", "*@")
    replace_in_file(folder, "rego/admission.rego", "reasons contains", "reasons contain")
    assert [fault.path for fault in faults(folder)] == ["patterns/pii.toml", "policy.toml", "rego/admission.rego"]


def test_what_is_no_text_or_not_there_is_said(tmp_path):
    folder = copy_policy(tmp_path)
    (folder / "patterns/pii.toml").write_bytes(b"# one\n# \xff\n")
    (folder / "rego/findings.rego").write_bytes(b"package railbus.findings\n\n\xff")
    (folder / "policy.toml").unlink()
    told = {fault.path: fault for fault in faults(folder)}
    assert told["patterns/pii.toml"].line == 2
    assert told["rego/findings.rego"].line == 3
    assert "missing" in told["policy.toml"].message


def test_no_folder_is_said(tmp_path):
    with pytest.raises(BrokenPolicy, match=r"not a folder; name one with a policy.toml"):
        load(tmp_path / "nowhere")


def test_a_file_whose_name_is_no_text_is_a_fault_also_at_the_start(tmp_path):
    folder = copy_policy(tmp_path)
    (folder / os.fsdecode(b"b\xfccher.txt")).touch()
    for read in (load, PolicyReloader):
        with pytest.raises(BrokenPolicy, match=r"'b\\udcfccher.txt':0: the file's name is not UTF-8; rename"):
            read(folder)


def test_too_many_or_too_large_files_are_refused(tmp_path):
    (tmp_path / "big.txt").write_bytes(b"x" * 4_000_001)
    with pytest.raises(BrokenPolicy, match="limit is 4000000"):
        load(tmp_path)
    for number in range(MAX_FILES + 1):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(BrokenPolicy, match="limit is 500"):
        load(tmp_path)


def test_examples_are_held_against_their_pattern(tmp_path):
    folder = copy_policy(tmp_path)
    line = replace_in_file(folder, "patterns/secrets.toml", '["AKIAIOSFODNN7EXAMPLE"]', '["AKIAIOSFODNN7EXAMPLE "]')
    other = replace_in_file(folder, "patterns/pii.toml", '"@example.com"]', '"a@example.com"]')
    assert lint(folder) == (
        PolicyFault("patterns/pii.toml", other, "pii/email: counterexample 3 is matched"),
        PolicyFault("patterns/secrets.toml", line, "secrets/aws_access_key: example 1 is not matched as a whole"),
    )


def test_a_rail_that_would_answer_after_the_verdict_is_due_is_a_fault(tmp_path):
    folder = copy_policy(tmp_path)
    first = replace_in_file(folder, "policy.toml", "deadline_ms = 150", "deadline_ms = 1_000")
    line = replace_in_file(folder, "policy.toml", "deadline_ms = 800", "deadline_ms = 2_000")
    due = "ms is not before a request's verdict is due (1000 ms)"
    assert lint(folder) == (
        PolicyFault("policy.toml", first, f"1000 {due}"),
        PolicyFault("policy.toml", line, f"2000 {due}"),
    )


def test_rego_without_an_answer_for_the_unknown_is_a_fault(tmp_path):
    folder = copy_policy(tmp_path)
    replace_in_file(folder, "rego/findings.rego", "} else := strictest[input.side]", "}")
    told = lint(folder)
    assert {fault.path for fault in told} == {"rego/findings.rego"}
    assert any("undefined" in fault.message and "no_such_category" in fault.message for fault in told)


def test_the_version_is_the_content_and_nothing_else(tmp_path):
    folder = copy_policy(tmp_path)
    version = load(folder).version
    assert version == load(ROOT / "policies/default").version
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    (folder / ".git").mkdir()
    (folder / ".git/HEAD").write_text("ref")
    (folder / "policy.toml~").write_text("old")
    (folder / "rego/.admission.rego.swp").write_text("open in an editor")
    assert load(folder).version == version
    shutil.move(folder / "golden/texts.jsonl", folder / "golden/other.jsonl")
    moved = load(folder).version
    replace_in_file(folder, "rego/data.json", "4096", "4097")
    assert len({version, moved, load(folder).version}) == 3


def test_the_version_is_the_same_on_every_machine():
    files = {"b/two": b"2", "a": b"one"}
    assert version_of(files) == version_of(dict(sorted(files.items()))) == "aa4cfcf59f20a8295e4c"
    assert version_of({"a": b"one", "b/tw": b"o2"}) != version_of(files)


def test_files_are_read_once_so_that_version_and_content_agree(tmp_path):
    folder = copy_policy(tmp_path)
    policy = load(folder)
    replace_in_file(folder, "nemo/config.yml", "models: []", "models: [] # later")
    assert version_of(policy.files) == policy.version
    assert b"later" not in policy.files["nemo/config.yml"]
    assert version_of(read_files(folder)) != policy.version


def test_linked_folders_are_read_as_kubernetes_mounts_them(tmp_path):
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..data").symlink_to("..2026")
    for path in copy_policy(tmp_path / "..2026").iterdir():
        path.rename(tmp_path / "..2026" / path.name)
        (tmp_path / path.name).symlink_to(f"..data/{path.name}")
    assert load(tmp_path).version == load(ROOT / "policies" / "default").version


def test_a_link_to_a_folder_around_it_is_not_followed_for_ever(tmp_path):
    folder = copy_policy(tmp_path)
    (folder / "patterns" / "around").symlink_to("..")
    (folder / "rego" / "itself").symlink_to(".")
    assert load(folder).version == load(ROOT / "policies" / "default").version


def test_a_match_one_character_longer_than_allowed_is_a_fault(tmp_path):
    folder = copy_policy(tmp_path)
    line = replace_in_file(folder, "patterns/pii.toml", "max_chars = 11\n", "max_chars = 10\n") - 1
    message = "pii/us_ssn: a match can be 11 characters long, above its max_chars = 10"
    assert faults(folder) == (PolicyFault("patterns/pii.toml", line, message),)


def test_a_rail_without_its_own_rule_for_faults_has_that_of_all(tmp_path):
    folder = copy_policy(tmp_path)
    replace_in_file(
        folder, "policy.toml", 'on_broken = "deny"        # likewise', 'on_broken = "allow"        # likewise'
    )
    assert load(folder).on_broken("nemo/other") == "allow"
    assert load(folder).on_broken("pii") == "deny"


def test_an_address_at_the_end_of_a_sentence_is_found():
    policy = load(ROOT / "policies" / "default")
    for text in ("Mail x@y.io.", "Mail x@y.io-", "Call 415-555-0132."):
        assert [match.end for match in find_all(policy.automaton, text)] == [len(text) - 1], text


@pytest.mark.parametrize(("action", "side"), [("redact", "input"), ("stop", "input"), ("mask", "output")])
def test_an_action_of_the_other_side_is_none(action, side):
    with pytest.raises(RulingError, match=f"'{action}' is no action for {side}"):
        read_ruling({"action": action}, side)


def test_brackets_beside_each_other_are_not_too_deep():
    for fault, most in ((rego_depth_fault, MAX_REGO_DEPTH), (data_depth_fault, MAX_DATA_DEPTH)):
        assert fault("f", "[" + "[1], " * 100 + "[1]]") is None
        assert fault("f", "[" * most + "]" * most) is None
        assert fault("f", "[" * (most + 1) + "]" * (most + 1)) is not None


def test_a_folder_that_cannot_be_listed_is_a_fault(tmp_path, monkeypatch):
    (tmp_path / "patterns").mkdir()
    scandir = os.scandir

    def fail(path):
        if Path(path).name == "patterns":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(BrokenPolicy, match="patterns:0: cannot be read: Permission denied") as broken:
        read_files(tmp_path)
    assert (broken.value.temporary, broken.value.forbidden) == (True, True)


def test_a_file_that_cannot_be_read_is_tried_again(tmp_path, monkeypatch):
    (tmp_path / "policy.toml").write_text("")
    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=OSError(24, "Too many open files")))
    with pytest.raises(BrokenPolicy, match=r"policy\.toml:0: cannot be read: Too many open files") as broken:
        read_files(tmp_path)
    assert (broken.value.temporary, broken.value.forbidden) == (True, False)


def test_a_volumes_own_folder_is_no_part_of_the_policy(tmp_path):
    for folder in ("lost+found", "patterns"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("")
    assert list(read_files(tmp_path)) == ["patterns/file"]


def test_a_blank_line_of_test_cases_is_no_fault(tmp_path):
    folder = copy_policy(tmp_path)
    (folder / "golden/odd.jsonl").write_text("  \t\n\n")
    assert lint(folder) == ()
    (folder / "golden/odd.jsonl").write_text("\n" + "[" * 100_000)
    assert [(fault.path, fault.line) for fault in lint(folder)] == [("golden/odd.jsonl", 2)]
