"""Test that ``tests.eval.prose`` finds docstrings and the sentences of pages, but nothing in tables or code blocks."""

from tests.eval import prose


def test_docstrings_and_sentences_of_the_project_are_found():
    places = dict(prose.docstrings())
    assert places["services/stream/screen.py Screen"]
    assert places["tests/eval/prose.py docstrings()"]
    texts = [text for _, text in prose.sentences()]
    assert "An application sends a prompt as one event." in texts
    assert not [text for text in texts if text.lstrip().startswith(("|", "```"))]


def test_code_and_tables_are_left_out_and_a_list_quotes_its_lead(tmp_path, monkeypatch):
    page = "# Title\n\nThese are all the many rules:\n\n- Each of the rules has a sentence.\n\n"
    hidden = "```\nA line of code with six words.\n```\n\n| A row of a table has words |\n"
    (tmp_path / "README.md").write_text(page + hidden)
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (_, lead), (place, item) = prose.sentences()
    assert (lead, item) == ("These are all the many rules:", "- Each of the rules has a sentence.")
    assert "These are all the many rules:" in place
