"""Test that ``railbus policy`` reports each fault with file and line, and then exits with code 1."""

from services.cli.__main__ import main
from services.policy import load
from tests.support.policies import ROOT, copy_policy, replace_in_file
from tests.unit.rails.world import rail_text

SHIPPED = [str(ROOT / "policies" / name) for name in ("default", "strict")]


def test_the_shipped_policies_pass(capsys):
    assert main(["policy", "lint", *SHIPPED]) == 0
    assert main(["policy", "test", *SHIPPED]) == 0
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 4
    assert "without fault" in told[0]
    assert told[2].endswith("of 42 answers as expected")


def test_the_version_is_shown(capsys, tmp_path):
    folder = copy_policy(tmp_path)
    assert main(["policy", "version", str(folder)]) == 0
    assert capsys.readouterr().out == f"{load(folder).version}  default  {folder}\n"


def test_faults_have_their_file_and_line(capsys, tmp_path):
    folder = copy_policy(tmp_path)
    replace_in_file(folder, "rego/data.json", '"email": "redact"', '"email": "flag"')
    assert main(["policy", "test", str(folder)]) == 1
    assert f"{folder}/golden/findings.jsonl:5: an address in an answer is redacted: expected" in capsys.readouterr().out
    line = replace_in_file(folder, "patterns/pii.toml", "{1,64}@", "+@")
    for action in ("lint", "test", "version"):
        assert main(["policy", action, SHIPPED[0], str(folder)]) == 1
        assert f"{folder}/patterns/pii.toml:{line}: pii/email: column 18 of the pattern: '+'" in capsys.readouterr().out


def test_patterns_that_no_rail_searches_prompts_for_are_named(capsys, tmp_path):
    folder = copy_policy(tmp_path)
    replace_in_file(folder, "policy.toml", rail_text("secrets"), "")
    replace_in_file(folder, "patterns/pii.toml", 'name = "pii/iban"', 'name = "house/iban"')
    assert main(["policy", "lint", str(folder)]) == 0
    _, named = capsys.readouterr().out.splitlines()
    assert named.startswith(f"{folder}: no rail 'secrets', so prompts are not searched for blocklist/code_names, ")
    assert "house/iban" in named
    assert "pii/" not in named
    assert named.endswith(" and 7 more")


def test_folded_words_that_are_not_found_in_answers_are_named(capsys, tmp_path):
    folder = copy_policy(tmp_path)
    replace_in_file(folder, "nemo/config.yml", "- railbus output", "- regex check output")
    assert main(["policy", "lint", str(folder)]) == 0
    _, named = capsys.readouterr().out.splitlines()
    assert named.startswith(f"{folder}: no 'railbus output' under rails.output.flows in nemo/config.yml, so answers ")
    assert named.endswith("the disguised words of blocklist/instructions")


def test_a_failing_case_with_a_lone_surrogate_is_shown(capsys, tmp_path):
    folder = copy_policy(tmp_path)
    (folder / "golden/odd.jsonl").write_text('{"name": "half", "output": "x", "expect": ["\\ud800"]}\n')
    assert main(["policy", "test", str(folder)]) == 1
    assert 'golden/odd.jsonl:1: half: expected ["\\ud800"], the answer is []' in capsys.readouterr().out
