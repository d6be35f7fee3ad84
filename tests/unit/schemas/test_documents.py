"""Test that the generated documents match the code, and that no reference in the AsyncAPI document is broken."""

import json
import subprocess
import sys

import pytest
from jsonschema import Draft202012Validator

from schemas.__main__ import GENERATED, README, drift, write
from schemas.documents.asyncapi import document
from schemas.registry import KINDS
from schemas.topics import TOPICS


def test_the_committed_documents_have_not_drifted():
    assert drift(GENERATED) == [], "run `make schemas` and commit the result"


def test_check_names_what_drifted(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(README.read_text("utf-8"), "utf-8")
    write(tmp_path, readme)
    readme.write_text(readme.read_text("utf-8").replace("Sums over accounts", "Somebody over accounts"), "utf-8")
    (tmp_path / "Chunk.schema.json").write_text("{}")
    (tmp_path / "Closed.schema.json").unlink()
    (tmp_path / "Ghost.schema.json").write_text("{}")
    command = [sys.executable, "-m", "schemas", "--check", "--folder", str(tmp_path), "--readme", str(readme)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 1
    assert "Chunk.schema.json, Closed.schema.json, Ghost.schema.json, README.md" in checked.stderr
    write(tmp_path, readme)
    assert readme.read_text("utf-8") == README.read_text("utf-8")
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_schema_is_a_schema(kind):
    Draft202012Validator.check_schema(json.loads((GENERATED / f"{kind}.schema.json").read_text()))


def references(value, path="#"):
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "$ref":
                yield path, inner
            yield from references(inner, f"{path}/{name}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from references(inner, f"{path}/{index}")


def resolve(whole, reference):
    here = whole
    for step in reference.removeprefix("#/").split("/"):
        here = here[step]
    return here


def test_every_reference_of_the_asyncapi_document_leads_somewhere():
    whole = document()
    found = list(references(whole))
    assert len(found) > 100
    for path, reference in found:
        if reference.startswith("#/"):
            assert resolve(whole, reference), path
        else:
            assert (GENERATED / reference).is_file(), path


def test_every_message_whose_records_have_a_key_describes_the_key():
    messages = document()["components"]["messages"]
    for name, kind in KINDS.items():
        key = messages[name]["bindings"]["kafka"].get("key")
        assert (key is None) == (kind.key == "none"), name
    assert messages["BatchProgress"]["bindings"]["kafka"]["key"]["description"] == "The batch id, as in the value."


def test_channels_are_the_topics_and_operations_stay_on_their_channels():
    whole = document()
    assert set(whole["channels"]) == {topic.name for topic in TOPICS}
    for name, operation in whole["operations"].items():
        channel = resolve(whole, operation["channel"]["$ref"])
        assert operation["action"] in {"send", "receive"}
        assert operation["messages"], name
        for message in operation["messages"]:
            assert message["$ref"].rsplit("/", 1)[1] in channel["messages"], name
    assert whole["operations"]["app.send.railbus.requests"]["reply"] == {
        "channel": {"$ref": "#/channels/railbus.streams"}
    }
