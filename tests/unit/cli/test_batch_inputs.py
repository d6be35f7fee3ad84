"""Test the input files of jobs: OpenAI's batch format, prompts, tables, and options that fill in missing fields."""

import io
import json
from functools import partial

import orjson
import pytest

from services.cli.__main__ import main
from services.cli.batch.inputs import InputOptions, write_lines
from services.cli.batch.runner import JobInput, _remembered
from services.runtime import UserError


def written(tmp_path, line: str, **body) -> bytes:
    path = tmp_path / "prompts.jsonl"
    path.write_text(line + "\n", encoding="utf-8")
    out = io.BytesIO()
    write_lines(path, InputOptions(body=body), out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"model": "m", "max_tokens": 9}),
        ({"model": None, "max_tokens": None}, {"model": "m", "max_tokens": 9}),
        ({"model": "own", "max_tokens": 3}, {"model": "own", "max_tokens": 3}),
        ({"max_completion_tokens": 3}, {"model": "m", "max_completion_tokens": 3}),
        ({"max_completion_tokens": None}, {"model": "m", "max_tokens": 9, "max_completion_tokens": None}),
    ],
)
def test_an_option_fills_in_only_what_a_line_lacks(tmp_path, given, found):
    line = written(tmp_path, json.dumps({"custom_id": "a", "body": given}), model="m", max_tokens=9)
    assert json.loads(line)["body"] == found


@pytest.mark.parametrize(
    "line",
    [
        "", "no JSON", "[]", "3", "{}", '{"body": null}', '{"body": []}', '{"body": "text"}', '{"body": [["a", 1]]}',
        '{"body": {"x": ' + "[" * 300 + "]" * 300 + "}}",
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_filled_in_stays_as_it_is(tmp_path, line):
    assert written(tmp_path, line, model="m") == line.encode() + b"\n"


@pytest.mark.parametrize(
    ("name", "content"), [("a.txt", "Why?\n"), ("a.jsonl", '{"body": {"messages": [{"content": "Why?"}]}}\n')]
)
@pytest.mark.parametrize("body", [{}, {"model": "m"}])
def test_a_byte_order_mark_is_no_part_of_the_first_prompt(tmp_path, name, content, body):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8-sig")
    out = io.BytesIO()
    write_lines(path, InputOptions(body=body), out)
    assert orjson.loads(out.getvalue())["body"]["messages"][0]["content"] == "Why?"


@pytest.mark.parametrize(
    ("option", "value"),
    [("--temperature", "nan"), ("--temperature", "3"), ("--max-tokens", "0"), ("--seed", "9" * 30), ("--model", "")],
)
def test_an_option_that_no_line_can_have_creates_no_job(tmp_path, monkeypatch, capsys, option, value):
    path = tmp_path / "prompts.txt"
    path.write_text("Why?\n", encoding="utf-8")
    monkeypatch.setenv("RAILBUS_BATCH_DIR", str(tmp_path / "batch"))
    args = ["batch", "run", str(path), "--out", str(tmp_path / "out"), "--kafka", "127.0.0.1:1", option, value]
    try:
        code = main(args)
    except SystemExit as ended:  # argparse refused the option
        code = ended.code
    assert code == 2
    assert f"{option}: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["[]", '"a"', "{}"])
def test_a_folder_whose_note_names_no_job_is_refused(tmp_path, content):
    (tmp_path / "job.json").write_text(content)
    (tmp_path / "p.txt").write_text("hello\n")
    with pytest.raises(UserError, match=r"its job\.json names no job: name another folder"):
        _remembered(tmp_path, job_input(tmp_path / "p.txt"))


def job_input(path, **options):
    options = InputOptions(**{"body": {}, **options})
    return JobInput(source=path, options_hash=options.digest(), write=partial(write_lines, path, options))


@pytest.mark.parametrize("changed", [{"body": {"model": "b"}}, {"system": "Be brief."}, {"template": "{n}"}])
def test_a_folder_whose_job_had_other_options_is_refused(tmp_path, changed):
    (tmp_path / "p.csv").write_text("n\n1\n")
    options = {"template": "{n}?", "body": {"model": "a"}}
    first = _remembered(tmp_path / "out", job_input(tmp_path / "p.csv", **options))
    assert _remembered(tmp_path / "out", job_input(tmp_path / "p.csv", **options)) == first
    with pytest.raises(UserError, match="has a job of the same file with other options, such as --model"):
        _remembered(tmp_path / "out", job_input(tmp_path / "p.csv", **options | changed))


def test_the_note_of_an_earlier_version_has_no_hash_of_the_options(tmp_path):
    (tmp_path / "p.txt").write_text("Why?\n")
    first = _remembered(tmp_path, job_input(tmp_path / "p.txt"))
    note = json.loads((tmp_path / "job.json").read_text())
    del note["options_hash"]
    (tmp_path / "job.json").write_text(json.dumps(note))
    assert _remembered(tmp_path, job_input(tmp_path / "p.txt", system="Be brief.")) == first


def lines(path, **options):
    out = io.BytesIO()
    write_lines(path, InputOptions(**{"body": {}, **options}), out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_row_without_an_id_has_an_empty_one_which_its_line_cannot_have(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,id\nMars,a\nEarth\n")
    assert [line["custom_id"] for line in lines(path, template="{text}", id_column="id")] == ["a", ""]


def test_any_column_can_be_named_in_a_template_and_other_braces_stay(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("article text,first-name,n\nMars,Eve,7\n")
    [line] = lines(path, template='{article text} {first-name} {"n": {n}, "m": {}} { n }')
    assert line["body"]["messages"][0]["content"] == 'Mars Eve {"n": 7, "m": {}} { n }'
    with pytest.raises(UserError, match="has no column 'name'"):
        lines(path, template="{name}")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("p.txt", {"template": "{text}"}, "--template is for tables"),
        ("p.txt", {"id_column": "id"}, "--id-column is for tables"),
        ("p.jsonl", {"template": "{text}"}, "--template is for tables"),
        ("p.jsonl", {"id_column": "id"}, "--id-column is for tables"),
        ("p.jsonl", {"system": "Be brief."}, "--system is for prompts and tables: write the system messages into"),
    ],
)
def test_an_option_that_a_file_cannot_have_is_refused(tmp_path, name, options, said):
    (tmp_path / name).write_text("{}\n")
    with pytest.raises(UserError, match=said):
        lines(tmp_path / name, **options)
