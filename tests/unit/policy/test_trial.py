"""Test that a policy that would crash or block its service is refused with one clear fault.

A separate process tries the policy, and crashes instead of the service.
"""

import sys
from unittest.mock import Mock

import pytest

from services.policy import BrokenPolicy, PolicyReloader, RulingError, build
from services.policy.engines.rego import Rego
from services.policy.lint import lint
from services.policy.source.depth import MAX_DATA_DEPTH, MAX_REGO_DEPTH
from services.policy.source.files import read_files
from services.policy.trial import try_policy
from tests.support.policies import ROOT, copy_policy, replace_in_file

pytestmark = pytest.mark.slow  # each policy is tried in a process of its own


def files_with(name, add):
    files = dict(read_files(ROOT / "policies/default"))
    files[name] = files.get(name, b"") + add.encode()
    return files


@pytest.mark.parametrize("name", ["default", "strict"])
def test_shipped_policies_pass(name):
    try_policy(read_files(ROOT / "policies" / name))


@pytest.mark.parametrize("name", ["default", "strict"])
def test_shipped_policies_are_not_near_the_limits_of_depth(name):
    for path, content in read_files(ROOT / "policies" / name).items():
        if path.startswith("rego/"):
            text, deepest, depth = content.decode(), 0, 0
            for char in text:
                depth += (char in "[({") - (char in "])}")
                deepest = max(deepest, depth)
            assert deepest <= 6


def nested(depth, inner="1"):
    return "[" * depth + inner + "]" * depth


@pytest.mark.parametrize(
    ("path", "add", "line"),
    [
        ("rego/deep.rego", f"package deep\n\nx := {nested(MAX_REGO_DEPTH + 1)}\n", 3),
        ("rego/deep.rego", f"package deep\n\nx := {nested(20_000)}\n", 3),
        ("rego/deep.rego", "package deep\n\nx := " + '{"a": ' * 30 + "1" + "}" * 30 + "\n", 3),
        ("rego/deep.rego", "package deep\n\nx := " + "abs(" * 40 + "1" + ")" * 40 + "\n", 3),
    ],
)
def test_nested_rego_is_a_fault_with_its_line_and_is_never_compiled(path, add, line):
    with pytest.raises(BrokenPolicy) as broken:
        build(files_with(path, add))
    (fault,) = broken.value.faults
    assert (fault.path, fault.line) == (path, line)
    assert "nested too deeply; the limit is 12" in fault.message


@pytest.mark.parametrize("depth", [MAX_DATA_DEPTH, 1_000, 100_000])
def test_nested_data_is_a_fault_with_its_line(depth):
    files = dict(read_files(ROOT / "policies/default"))
    files["rego/data.json"] = f'{{"tenants": {{}},\n"x": {nested(depth)}}}'.encode()
    with pytest.raises(BrokenPolicy) as broken:
        build(files)
    (fault,) = broken.value.faults
    assert (fault.path, fault.line) == ("rego/data.json", 2)
    assert f"the limit is {MAX_DATA_DEPTH}" in fault.message


def test_brackets_in_texts_and_comments_nest_nothing():
    texts = f'package deep\n# {"[" * 50}\nx := "{"[" * 50}"\ny := `{"(" * 50}`\nz := "\\"{"{" * 50}"\n'
    build(files_with("rego/deep.rego", texts))
    files = dict(read_files(ROOT / "policies/default"))
    files["rego/data.json"] = b'{"tenants": {}, "x": "' + b"[" * 500 + b'\\"' + b"[" * 500 + b'"}'
    build(files)


def admission_that_says(expression):
    """Return the files of the default policy, with ``expression`` added to its admission rules."""
    files = dict(read_files(ROOT / "policies/default"))
    text = files["rego/admission.rego"].decode()
    files["rego/admission.rego"] = f'{text}\nreasons contains "model" if {expression} == 7\n'.encode()
    return files


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("count(numbers.range(1, 1000000000))", "ended the process (signal 6: its memory or its stack was not enough)"),
        ('count(sprintf("%2000000000d", [1]))', "ended the process (signal 6"),
        ("count(numbers.range(1, 10000000))", "an answer takes"),
    ],
)
def test_rego_that_takes_all_memory_or_all_time_is_a_fault_of_its_file(expression, says):
    with pytest.raises(BrokenPolicy) as broken:
        try_policy(admission_that_says(expression))
    (fault,) = broken.value.faults
    assert fault.path == "rego/admission.rego"
    assert says in fault.message
    assert "make it simpler" in fault.message


def test_a_trial_that_is_killed_from_outside_may_be_made_again(tmp_path, monkeypatch):
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\ncat >/dev/null\necho build\nkill -9 $$\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))
    with pytest.raises(BrokenPolicy, match=r"it was killed: .* when its files are compiled; if this repeats") as broken:
        try_policy({})
    assert broken.value.temporary


def test_a_trial_that_cannot_start_may_be_made_again(monkeypatch):
    busy = Mock(side_effect=BlockingIOError(11, "Resource temporarily unavailable"))
    monkeypatch.setattr("services.policy.trial.subprocess.run", busy)
    with pytest.raises(BrokenPolicy, match=r"did not start \(Resource temporarily unavailable\)") as broken:
        try_policy({})
    assert broken.value.temporary


def test_service_keeps_the_policy_it_has(tmp_path):
    folder = copy_policy(tmp_path)
    reloader = PolicyReloader(folder)
    before = reloader.current
    (folder / "rego/admission.rego").write_bytes(
        admission_that_says("count(numbers.range(1, 1000000000))")["rego/admission.rego"]
    )
    assert reloader.poll() is None
    assert reloader.poll() is None
    assert reloader.current is before
    assert "ended the process" in str(reloader.refused)
    with pytest.raises(BrokenPolicy, match="ended the process"):
        PolicyReloader(folder)


def test_faults_are_those_of_a_build(tmp_path):
    folder = copy_policy(tmp_path)
    replace_in_file(folder, "patterns/pii.toml", "{1,64}@", "+@")
    replace_in_file(folder, "policy.toml", 'stop = "', 'halt = "')
    with pytest.raises(BrokenPolicy) as broken:
        try_policy(read_files(folder))
    assert broken.value.faults == lint(folder)


PANICS = 'package a\nimport rego.v1\nx := glob.match("' + "{a," * 200 + "b" + "}" * 200 + '", [], input.k)\n'


def test_an_engine_that_gives_up_gives_no_answer_and_goes_on():
    """A panic of the Rego engine raises a ``RulingError``, and the engine can be asked again."""
    asked = Rego({"a.rego": PANICS}, {}, ("data.a.x",))
    for _ in range(3):
        with pytest.raises(RulingError, match=r"data\.a\.x: "):
            asked.ask("data.a.x", {"k": "a"})


def test_an_engine_that_gives_up_while_it_compiles_is_a_broken_policy():
    source = "package a\nimport rego.v1\nx := 1 if input.k == 0\n"
    source += "".join(f"else := {n} if input.k == -{n}\n" for n in range(2, 3_000))
    with pytest.raises(BrokenPolicy, match="Register overflow"):
        Rego({"a.rego": source}, {}, ("data.a.x",))


def test_large_flat_data_is_no_fault():
    files = dict(read_files(ROOT / "policies/default"))
    tenants = ",".join(f'"tenant{n}": {{"max_tokens": {n}}}' for n in range(50_000))
    files["rego/data.json"] = files["rego/data.json"].replace(b'"suspended"', tenants.encode() + b', "suspended"')
    assert build(files).rego.data["tenants"]["tenant7"] == {"max_tokens": 7}
