"""Test that ``tests.eval.prose`` finds docstrings and the sentences of pages, but nothing in tables or code blocks."""

from tests.eval import prose


def test_docstrings_and_sentences_of_the_project_are_found():
    product, all_places = dict(prose.docstrings(*prose.PRODUCT)), dict(prose.docstrings(*prose.PRODUCT, prose.TESTS))
    assert product["services/stream/screen.py Screen"]
    assert all_places.items() > product.items()
    assert all_places["tests/eval/prose.py docstrings(*folders: str)"]
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


def test_a_list_without_a_lead_is_quoted_with_its_heading(tmp_path, monkeypatch):
    text = (
        "A lead of some other list:\n\n- One of its items has words.\n\n## Engines\n\n- Another item has five words.\n"
    )
    (tmp_path / "README.md").write_text(text)
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    place, item = list(prose.sentences())[-1]
    assert item == "- Another item has five words."
    assert place == f"README.md, in: ## Engines {item}"
