"""Test that the documentation site builds without a warning, and that ``infra.docs.check`` finds faults."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from infra.docs.check import faults
from infra.docs.discover import ROOT


def write(folder: Path, **pages: str) -> Path:
    for name, body in pages.items():
        (folder / f"{name}.html").write_text(f"<html><body>{body}</body></html>", encoding="utf-8")
    return folder


@pytest.mark.slow
@pytest.mark.skipif(find_spec("material") is None, reason="pip install -r requirements/docs.txt")
def test_the_site_is_built_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    build = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        capture_output=True, text=True, timeout=240, check=False, cwd=ROOT, stdin=subprocess.DEVNULL,
    )  # fmt: skip

    assert build.returncode == 0, build.stderr
    assert list(faults(tmp_path / "site")) == []


def test_a_whole_site_has_no_fault(tmp_path: Path) -> None:
    site = write(tmp_path, a='<a href="b.html#x">b</a><a href="https://example.org">elsewhere</a>', b='<p id="x">')

    assert list(faults(site)) == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<script src="https://cdn.example.org/x.js"></script>', "from another host"),
        ('<link rel="stylesheet" href="//fonts.example.org/f.css">', "from another host"),
        ('<img src="missing.png">', "which is not there"),
        ('<a href="missing.html">m</a>', "which is not there"),
        ('<a href="#missing">m</a>', "which is not there"),
    ],
)
def test_a_fault_is_named(tmp_path: Path, body: str, fault: str) -> None:
    (found,) = faults(write(tmp_path, a=body))

    assert fault in found
    assert found.startswith("a.html")


def test_a_font_in_a_style_sheet_is_found(tmp_path: Path) -> None:
    (write(tmp_path, a="") / "x.css").write_text("@font-face{src:url(https://fonts.example.org/f.woff)}")

    assert len(list(faults(tmp_path))) == 1


def test_an_empty_folder_is_no_site(tmp_path: Path) -> None:
    assert len(list(faults(tmp_path))) == 1
