"""Test that plots are written to the given file or folder, and that a missing library is reported."""

import sys

import pytest

from services.planner.__main__ import main

PNG, PANELS = b"\x89PNG", {"roofline.png", "gamma.png", "batch.png", "budget.png"}


@pytest.mark.slow
def test_a_file_holds_every_panel_and_a_folder_one_each(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main(["latency", "--plot", str(tmp_path / "new" / "plan.svg")]) == 0
    assert "<svg" in (tmp_path / "new" / "plan.svg").read_text()
    assert main(["latency", "--alpha", "0.55", "--plot", str(tmp_path / "each")]) == 0
    drawn = list((tmp_path / "each").iterdir())
    assert {path.name for path in drawn} == PANELS
    assert all(path.read_bytes().startswith(PNG) for path in drawn)
    assert main(["latency", "--draft", "none", "--plot", str(tmp_path / "plain")]) == 0
    assert {path.name for path in (tmp_path / "plain").iterdir()} == {"roofline.png", "budget.png"}
    assert capsys.readouterr().err.count("drawn: ") == 7


@pytest.mark.slow
def test_a_path_that_cannot_be_written_is_reported(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    assert main(["latency", "--plot", str(tmp_path / "file" / "plan.png")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_missing_library_is_reported(tmp_path, capsys, monkeypatch):
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["latency", "--plot", str(tmp_path / "plan.png")]) == 2
    assert "pip install 'railbus[plots]'" in capsys.readouterr().err
