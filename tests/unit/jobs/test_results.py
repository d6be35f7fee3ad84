"""Test that each line of a job's input gets exactly one result, in the order of the input."""

import json
from io import BytesIO

import msgspec
import pytest

from schemas.batches import LineFault, ResultPart
from schemas.stream import Usage
from services.jobs.ids import error_file_id, line_request_id, new_batch_id, output_file_id
from services.jobs.lines import MAX_LINE_BYTES, BadLine
from services.jobs.prepare import FAULTS, MAX_FAULTS, JobLines, numbered_lines, prepare, read_faults
from services.jobs.result_lines import LineAnswer, LineError, result_line
from services.jobs.results import ResultFiles, part_record, write_results
from services.jobs.store import FolderStore

CREATED_MS = 1_700_000_000_999
BATCH_ID = new_batch_id(CREATED_MS, 1)
FILE_ID = "file-a"
USAGE = Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1)
SHARED, OTHER = "s" * 300, "o" * 300


def line(name, content="Why?"):
    return json.dumps({"custom_id": name, "body": {"messages": [{"role": "user", "content": content}]}}).encode()


@pytest.fixture
def store(tmp_path):
    return FolderStore(tmp_path)


def stored(store, content):
    with store.writing(FILE_ID, "acme", "lines.jsonl", "batch", 0) as file:
        file.write(content)
    return store


def prepared(store, content, *, refuse_bad=False):
    return prepare(stored(store, content), BATCH_ID, FILE_ID, refuse_bad=refuse_bad)


def write_part(store, name, results):
    """Write a part file that ends with an incomplete record.

    Return the file's name, and its length in bytes without the incomplete record.
    """
    lines, content = JobLines(store, BATCH_ID, FILE_ID), b""
    for place, result in results:
        said = result_line(BATCH_ID, place, 1, lines.number(place), lines.line(place).custom_id, result)
        content += part_record(place, is_answer=isinstance(result, LineAnswer), line=said)
    lines.close()
    (store.work_folder(BATCH_ID) / name).write_bytes(content + b"0\t1\tcut o")
    return ResultPart(name=name, length=len(content))


def answer(text):
    return LineAnswer(text=text, model="m", finish_reason="stop", usage=USAGE)


def results(store, parts, good, outcome="completed"):
    return write_results(
        store, BATCH_ID, FILE_ID, tenant="acme", parts=parts, good=good, outcome=outcome, now_s=7
    )  # fmt: skip


def rows(store, file_id):
    with store.open(file_id) as file:
        return [json.loads(each) for each in file]


def test_lines_are_numbered_as_an_editor_does():
    long = b"x" * (MAX_LINE_BYTES + 1)
    for middle in (long, long + b"x", long * 3):
        content = b"\n" + line("a") + b"\r\n \r\n" + middle + b"\n" + line("b")
        found = [*numbered_lines(BytesIO(content))]
        assert [number for number, *_ in found] == [2, 4, 5]
        assert (found[0][2], found[2][2]) == (line("a"), line("b"))
        assert len(found[1][2]) > MAX_LINE_BYTES
        for _, offset, raw in found:
            assert content[offset : offset + len(raw)] == raw


def test_a_line_of_the_greatest_length_is_whole():
    longest = b"x" * MAX_LINE_BYTES
    for end in (b"\n", b"\r\n", b""):
        assert [*numbered_lines(BytesIO(longest + end))] == [(1, 0, longest)]


def test_lines_with_a_common_prefix_are_neighbours_and_keep_their_numbers(store):
    names = ["a", "b", "c", "d"]
    content = b"\n".join(line(name, SHARED if name in "ac" else OTHER) for name in names)
    assert prepared(store, content).good == 4
    lines = JobLines(store, BATCH_ID, FILE_ID)
    assert [lines.line(place).custom_id for place in range(4)] == ["a", "c", "b", "d"]
    assert [lines.number(place) for place in range(4)] == [1, 3, 2, 4]
    lines.close()


def test_a_bad_line_refuses_the_job_only_if_asked(store):
    content = line("a") + b"\nnot json\n"
    refused = prepared(store, content, refuse_bad=True)
    assert [(fault.code, fault.line) for fault in refused.refused] == [("invalid_json_line", 2)]
    assert prepare(store, BATCH_ID, FILE_ID, refuse_bad=False) == refused, "it was decided before"
    store.clean(BATCH_ID)
    plan = prepare(store, BATCH_ID, FILE_ID, refuse_bad=False)
    assert (plan.good, plan.bad, plan.lines, plan.refused) == (1, 1, 2, ())


def test_a_refused_job_lists_its_first_faults_only(store):
    plan = prepared(store, b"not json\n" * 250, refuse_bad=True)
    assert [fault.line for fault in plan.refused] == [*range(1, MAX_FAULTS + 1)]


def test_older_and_newer_versions_read_each_others_faults(store):
    prepared(store, line("a") + b"\nnot json\nnot json\n")
    folder = store.work_folder(BATCH_ID)
    found = [*read_faults(folder)]
    assert [fault.line for fault in found] == [2, 3]
    assert msgspec.json.decode((folder / FAULTS).read_bytes(), type=list[LineFault]) == found
    (folder / FAULTS).write_bytes(msgspec.json.encode(found))
    assert [*read_faults(folder)] == found
    (folder / FAULTS).write_bytes(b"[]")
    assert not [*read_faults(folder)]


def test_a_line_that_only_an_older_version_accepts_keeps_its_name(store, monkeypatch):
    prepared(store, line("a"))

    def refuse(raw):
        raise BadLine("unsupported_parameter", "no", custom_id=json.loads(raw)["custom_id"])

    monkeypatch.setattr("services.jobs.prepare.parse_line", refuse)
    [row] = rows(store, results(store, [], 1, "expired").error_file)
    assert (row["custom_id"], row["error"]["code"]) == ("a", "batch_expired")


@pytest.mark.parametrize("content", [b"", b"\n \r\n"])
def test_a_file_without_lines_is_refused(store, content):
    assert [fault.code for fault in prepared(store, content).refused] == ["empty_file"]


def test_a_file_of_bad_lines_only_is_not_empty(store):
    plan = prepared(store, b"not json\n")
    assert (plan.good, plan.bad, plan.refused) == (0, 1, ())
    found = results(store, [], 0)
    assert (found.output_file, found.completed, found.failed) == (None, 0, 1)


def test_an_id_that_is_there_twice_refuses_the_job(store):
    [fault] = prepared(store, b"\n".join(map(line, "abcb"))).refused
    assert (fault.code, fault.line, fault.param) == ("duplicate_custom_id", 4, "custom_id")
    assert fault.message == "Line 4: the custom_id 'b' is also on line 2."


def test_every_line_has_one_result_in_the_order_of_the_input(store):
    content = [
        line("a", SHARED), b"bad", line("b", OTHER), line("c", SHARED), b"bad", line("d", OTHER), b"bad"
    ]  # fmt: skip
    assert prepared(store, b"\n".join(content)).good == 4  # submitted as a, c, b, d
    first = write_part(store, "part-1", [(3, answer("D")), (2, LineError(code="expired", message="no", param="p"))])
    second = write_part(store, "part-2", [(0, answer("A"))])
    found = results(store, [first, second], 4, "cancelled")
    assert found == ResultFiles(output_file_id(BATCH_ID), error_file_id(BATCH_ID), completed=2, failed=5)
    answers, errors = rows(store, found.output_file), rows(store, found.error_file)
    texts = [row["response"]["body"]["choices"][0]["message"]["content"] for row in answers]
    assert list(zip([row["custom_id"] for row in answers], texts, strict=True)) == [("a", "A"), ("d", "D")]
    told = [(row["error"]["line"], row["custom_id"], row["error"]["code"]) for row in errors]
    bad = [(number, None, "invalid_json_line") for number in (2, 5, 7)]
    assert told == sorted([*bad, (3, "b", "expired"), (4, "c", "batch_cancelled")])
    assert len({row["id"] for row in answers + errors}) == 7
    file = store.find(found.output_file)
    assert (file.tenant, file.purpose, file.created_s) == ("acme", "batch_output", 7)
    assert file.filename == f"{BATCH_ID}_output.jsonl"


def test_a_line_that_an_expired_job_never_submitted_says_so(store):
    prepared(store, line("a"))
    [row] = rows(store, results(store, [], 1, "expired").error_file)
    assert (row["error"]["code"], row["error"]["line"], row["response"]) == ("batch_expired", 1, None)


@pytest.mark.parametrize("outcome", ["completed", "cancelled"])
def test_answers_are_kept_although_the_input_was_deleted_meanwhile(store, outcome):
    prepared(store, line("a") + b"\n" + line("b"))
    part = write_part(store, "part-1", [(0, answer("A"))])
    store.delete(FILE_ID)
    found = results(store, [part], 2, outcome)
    [row] = rows(store, found.output_file)
    assert row["custom_id"] == "a"
    [row] = rows(store, found.error_file)
    assert (row["custom_id"], row["error"]["line"], row["error"]["code"]) == (None, 2, "batch_cancelled")


def test_an_answer_is_a_completion_of_the_request_that_gave_it():
    row = json.loads(result_line(BATCH_ID, 5, 2, 9, "a", answer("tab\tand\nend")))
    request_id = line_request_id(BATCH_ID, 5, 2)
    body = row["response"]["body"]
    assert (row["error"], row["response"]["request_id"]) == (None, request_id)
    assert (body["id"], body["created"]) == (f"chatcmpl-{request_id}", CREATED_MS // 1_000)
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
