"""Test that a terminal shows exactly the current text of an answer: nothing taken back, and nothing missing."""

import re

from hypothesis import given
from hypothesis import strategies as st

from services.cli.show.terminal import Terminal, printable, screen_rows
from services.stream import Begin, Close, Refuse, Replace, Restart, Show, Withdraw

COLUMNS, ROWS = 12, 200


class Glass:
    """A simulated terminal. It wraps long lines, and it obeys newline, carriage return, cursor up and erase below."""

    def __init__(self, columns):
        self.columns = columns
        self.lines = [""]
        self.row = 0
        self.column = 0

    def write(self, text):
        for token in re.findall(r"\x1b\[\d*[A-Za-z]|.", text, re.DOTALL):
            self._token(token)

    def _token(self, token):
        if token == "\n":
            self.row, self.column = self.row + 1, 0
            self.lines += [""] * (self.row + 1 - len(self.lines))
        elif token == "\r":
            self.column = 0
        elif token.endswith("A") and token.startswith("\x1b"):
            self.row -= int(token[2:-1])
            assert self.row >= 0, "the cursor left the screen"
        elif token == "\x1b[J":
            self.lines[self.row] = self.lines[self.row][: self.column]
            del self.lines[self.row + 1 :]
        elif token.startswith("\x1b"):
            assert token.endswith("m"), token
        else:
            if self.column == self.columns:
                self._token("\n")
            self.lines[self.row] = self.lines[self.row][: self.column].ljust(self.column) + token
            self.column += 1

    def text(self):
        return "\n".join(self.lines)


def wrapped(text):
    return "\n".join(
        "\n".join(line[at : at + COLUMNS] for at in range(0, max(1, len(line)), COLUMNS)) for line in text.split("\n")
    )


REASON = {"rule": "card", "category": "pii", "policy_version": "p", "recall_id": "r"}
TEXT = st.text(st.sampled_from("abc \n"), min_size=1, max_size=30)


@st.composite
def histories(draw):
    """Draw a sequence of ops. All offsets in the ops are within the text that is visible at that point."""
    ops, visible = [], 0
    for _ in range(draw(st.integers(1, 12))):
        text = draw(TEXT)
        kind = draw(st.sampled_from(["show", "show", "show", "replace", "restart", "withdraw"]))
        if kind == "show":
            ops.append(Show(text=text, tokens=1))
            visible += len(text)
        elif kind == "replace":
            start = draw(st.integers(0, visible))
            end = draw(st.integers(start, visible))
            ops.append(Replace(start=start, end=end, text=text, **REASON))
            visible += len(text) - (end - start)
        elif kind == "restart":
            ops.append(Restart(attempt=2, trigger="stall"))
            visible = 0
        else:
            return [*ops, Withdraw(end=visible, text=text, **REASON)]
    return ops


@given(histories())
def test_the_screen_ends_with_the_visible_text_and_shows_nothing_void(ops):
    terminal, glass = Terminal(COLUMNS, ROWS), Glass(COLUMNS)
    notices = ""
    for op in ops:
        glass.write(terminal.render(op))
        if not isinstance(op, Show):
            # whatever stands above the answer now is notices, and stays
            shown = wrapped(terminal.visible)
            assert glass.text().endswith(shown)
            notices = glass.text()[: len(glass.text()) - len(shown)]
            lines = [line for line in notices.replace("\n", "").split("]") if line]
            assert all(line.startswith("[") for line in lines), notices
        else:
            assert glass.text() == notices + wrapped(terminal.visible)


@given(histories())
def test_a_pipe_gets_a_notice_and_then_the_whole_text_anew(ops):
    terminal = Terminal()
    written = ""
    for op in ops:
        before, text = terminal.visible, terminal.render(op)
        assert "\x1b" not in text
        written += text
        assert written.endswith(terminal.visible)
        if not isinstance(op, Show) and before:
            assert "the text above is void" in text


def test_text_that_scrolled_away_is_declared_void():
    terminal = Terminal(COLUMNS, rows=3)
    terminal.render(Show(text="one\ntwo\nthree\nfour\nfive", tokens=5))
    written = terminal.render(Withdraw(end=23, text="Sorry.", **REASON))
    assert "the text above is void: withdrawn by rule card (pii)" in written
    assert "\x1b[J" not in written
    assert written.endswith("\nSorry.")


def test_a_refusal_and_other_ops():
    terminal = Terminal()
    assert terminal.render(Begin(attempt=1, run="r", model="m")) == ""
    assert terminal.render(Refuse(text="No.", policy_version="p")) == "[denied by policy]\nNo."
    assert terminal.render(Close(outcome="denied", reason="")) == ""


def test_an_answer_cannot_steer_the_terminal():
    evil = "\x1b[2J\x9b31m\x07\x00\r\b\x7fok\n"
    shown = Terminal(80).render(Show(text=evil, tokens=1))
    assert shown == printable(evil)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)
    assert shown.endswith("ok\n")
    assert Terminal().render(Show(text=evil, tokens=1)) == evil  # a file gets what was said


def test_rows():
    assert screen_rows("", 10) == 1
    assert screen_rows("x" * 10, 10) == 1
    assert screen_rows("x" * 11, 10) == 2
    assert screen_rows("a\n\nb", 10) == 3
    assert screen_rows("漢字漢字漢字", 10) == 2
    assert screen_rows("漢" * 82, 41) == 5
    assert screen_rows("\u0e01\u0e31" * 10, 10) == 1  # Thai vowels have no width
