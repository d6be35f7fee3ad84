"""Test that ``railbus demo`` starts its own tree and plays its scenes, and that it refuses an unknown scene."""

import re
import subprocess
import sys
from collections import Counter
from xml.etree import ElementTree as ET

from tests.support.processes import bare_environment

SVG_TEXT = "{http://www.w3.org/2000/svg}text"


def test_scenes_end_as_they_should_without_colours_where_nobody_sees_them(tmp_path):
    picture = tmp_path / "demo.svg"
    chosen = ("recalled", "hard-error")
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "demo", "--svg", picture, *(f"--scene={name}" for name in chosen)],
        capture_output=True, text=True, timeout=240, cwd=tmp_path, check=False, env=bare_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done
    assert done.stdout.count("\nas it should be\n") == 2
    assert done.stdout.rstrip().endswith("2 of 2 scenes ended as they should")
    for said in (
        "Recall",
        "This answer was withdrawn",
        "to attempt 2 on vertex, hard_error, cancel",
        "by engine vertex",
    ):
        assert said in done.stdout
    assert "\x1b" not in done.stdout
    # Without colours, withdrawn text is marked, so its lines break elsewhere: the words are the same.
    assert words("".join(f"{element.text}\n" for element in ET.parse(picture).iter(SVG_TEXT))) <= words(done.stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["demo.svg"]


def words(text):
    return Counter(re.findall(r"\w+", text))


def test_a_scene_that_is_none(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", "demo", "--scene", "nope"],
        capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False, env=bare_environment(),
    )  # fmt: skip
    assert done.returncode == 2
    assert "ttft-race" in done.stderr
