"""Test that ``railbus policy`` reports each fault with file and line, and then exits with code 1."""

from services.cli.__main__ import main
from services.policy import load
from tests.support.policies import ROOT, copy_policy, replace_in_file

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
