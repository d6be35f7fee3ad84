# ruff: noqa: E501 - a mutant is easier to read on one line
"""Break one rule of the fold at a time, and check that the property tests fail.

``python -m tests.mutation.fold [HISTORIES]`` copies the project's fold and its tests to a temporary folder, breaks one
rule, runs the tests, and prints whether they fail. HISTORIES is the number of random histories (default 2000). The exit
code is 1 if the tests pass with a broken rule, or if the text of a rule is not found.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCREEN, VOICE, ORDER, TEXT, DELIVERY = "screen.py", "voice.py", "order.py", "transcript.py", "delivery.py"

MUTANTS = [
    ("1 the last Started wins, not the first", ORDER, "if started.attempt in self.by_attempt:", "if False:"),
    ("1 any run of a candidate attempt is heard", ORDER, "first is not None and first.run == run", "True"),
    ("1 a ttft cutover is never void", VOICE, "return not self.has_spoken", "return True"),
    ("1 a stall cutover is never void", VOICE, "return last_seq <= cutover.seen_seq", "return True"),
    ("1 a cutover may skip or repeat an attempt", VOICE, "if cutover.attempt != self.last_attempt + 1:", "if False:"),
    ("1 a race does not keep the first attempt", VOICE, "self.candidates | {cutover.attempt} if racing else", "frozenset({cutover.attempt}) if racing else"),
    ("1 the first chunk does not settle a race", VOICE, "self.candidates = frozenset({attempt})", "pass"),
    ("1 the text of the last voice stays after a cutover", SCREEN, "        self._text = Transcript()\n        self._recalls_applied_to = None\n", "        self._recalls_applied_to = None\n"),
    ("1 the clearance of the last voice counts for the next", SCREEN, "        self._cleared = -1\n        self.final = False\n        self.finished", "        self.finished"),
    ("2 an offset that contradicts the text is believed", ORDER, "if seq != self.next_seq or start != self.length or self._waiting:", "if seq != self.next_seq or self._waiting:"),
    ("2 an offset that contradicts the text is believed behind a gap", ORDER, "following is not None and following.start == self.length:", "following is not None:"),
    ("2 chunks are taken as they come", TEXT, "    def add(self, chunk: Chunk, log_ms: int) -> None:\n", "    def add(self, chunk: Chunk, log_ms: int) -> None:\n        return self._add(chunk, log_ms)\n"),
    ("2 a gap does not wait", ORDER, "self._waiting.setdefault(chunk.seq, chunk)", "return (chunk,)"),
    ("2 what waited behind a gap is lost", ORDER, "following = self._waiting.pop(self.next_seq, None)", "following = None"),
    ("3 the gate is always open", SCREEN, 'return self.verdict.decision == "allow"\n', "return True\n"),
    ("3 a missing verdict opens the gate", SCREEN, 'return self._mask_done or (voice is not None and voice.input_gate == self._governance.input_gate == "off")', "return True"),
    ("3 a worker's word outweighs the reader's", SCREEN, 'voice.input_gate == self._governance.input_gate == "off"', 'voice.input_gate == "off"'),
    ("4 a worker's word outweighs the reader's", SCREEN, 'return "on" in (voice.output_check, self._governance.output_check)', 'return voice.output_check == "on"'),
    ("3 a masked prompt's own answer is shown", SCREEN, 'self.verdict.decision != "mask":\n            return self.verdict', 'True:\n            return self.verdict'),
    ("3 the last verdict counts, not the first", SCREEN, "if self.verdict is not None:\n            return NOTHING\n        self.verdict", "self.verdict"),
    ("3 a denial does not end the answer", SCREEN, 'self.over = True\n        self.withdrawn = event.refusal', "self.withdrawn = None"),
    ("4 exposure is not bounded", DELIVERY, "if exposed > delivery.max_exposure_tokens:", "if False:"),
    ("4 a writer's clock ends the window", SCREEN, "self._log_ms = log_ms\n", "self._log_ms = event.at // 1_000\n"),
    ("4 the window does not hold for a time", DELIVERY, "log_ms - text.known_ms[index] < delivery.hold_ms", "False"),
    ("4 gated shows uncleared text", DELIVERY, 'if delivery.mode == "gated":', "if False:"),
    ("4 what policy tightened is not heeded", SCREEN, "if self.verdict is not None and self.verdict.delivery is not None:", "if False:"),
    ("5 a stop does not withdraw", SCREEN, "        if self._pending_stop is not None:\n            return self._withdraw(self._pending_stop)\n", ""),
    ("5 text goes on after a stop", SCREEN, "self._pending_stop = event\n        self.over = True", "self._pending_stop = event"),
    ("5 a recall of another run counts", SCREEN, "return self._apply_recall(event) if self._is_voice(event) else NOTHING", "return self._apply_recall(event)"),
    ("5 what was recalled before a run was heard is forgotten", SCREEN, "self._recalls.setdefault((event.attempt, event.run), []).append(event)", "pass"),
    ("5 a cutover forgets what was recalled of who goes on", SCREEN, "        self._recalls_applied_to = None\n        self._cleared = -1\n", "        self._cleared = -1\n"),
    ("5 a redaction misses text still to come", TEXT, "            insort(self._redactions, span, key=lambda known: known.start)\n", ""),
    ("5 a redaction misses text already shown", TEXT, "ops.append(self._splice(first, last, span))", "pass"),
    ("5 overlapping redactions are both applied", TEXT, "self._uncovered(recall.start, recall.end):", "[(recall.start, recall.end)]:"),
    ("5 recalls end with Closed", SCREEN, "and type(event) is not Recall", ""),
    ("6 the last Closed counts, not the first", SCREEN, "if self.closed is not None and type(event) is not Recall:", "if False:"),
    ("6 no Closed is void", SCREEN, "if not self._close_holds(event):", "if False:"),
    ("6 a Closed without a cause is void", SCREEN, "return True  # the writer", "return False  # the writer"),
    ("6 a Closed outlives the answer's own end", SCREEN, "if conclusion is not None or cause in _CONCLUSIONS:", "if cause in _CONCLUSIONS:"),
    ("6 an answer is closed as answered before its end", SCREEN, "if conclusion is not None or cause in _CONCLUSIONS:", "if conclusion is not None:"),
    ("6 a denial is no end of its own", SCREEN, 'if (verdict := self.verdict) is not None and verdict.decision == "deny":\n            return "denied"', "pass"),
    ("6 a stop is no end of its own", SCREEN, 'return "recalled" if shown else None', "return None"),
    ("6 a stop behind a closed gate is an end", SCREEN, 'return "recalled" if shown else None', 'return "recalled"'),
    ("6 a stop is told by its withdrawal alone", SCREEN, "self.withdrawn is not None or self.verdict is not None", "self.withdrawn is not None"),
    ("6 a stop is told by the verdict alone", SCREEN, "self.withdrawn is not None or self.verdict is not None", "self.verdict is not None"),
    ("6 a complete answer is no end of its own", SCREEN, 'return "answered" if self.over and self.closed is None else None', "return None"),
    ("6 a Closed outlives a later attempt", SCREEN, "self.finished is not None or voice_state.last_attempt > event.seen_attempts", "self.finished is not None"),
    ("6 a Closed outlives the voice's Finished", SCREEN, "self.finished is not None or voice_state.last_attempt > event.seen_attempts", "voice_state.last_attempt > event.seen_attempts"),
    ("6 every Closed is void after a later attempt", SCREEN, "cause in _NO_ANSWER_COMES and (", "("),
    ("6 no verdict outlives the verdict", SCREEN, "self.verdict is None and not self.gate_open", "not self.gate_open"),
    ("6 no verdict outlives an open gate", SCREEN, "self.verdict is None and not self.gate_open", "self.verdict is None"),
    ("6 no first token outlives the first chunk", SCREEN, '            "no_first_token": not voice_state.has_spoken,\n', ""),
    ("6 a stall outlives the next chunk", SCREEN, '            "stalled": self._text.last_seq <= event.seen_seq,\n', ""),
    ("6 what cannot begin has begun", SCREEN, '            "cannot_begin": voice_state.voice is None,\n', ""),
    ("6 what nobody could read was taken up", SCREEN, '            "unreadable": not voice_state.runs.by_attempt,\n', ""),
    ("6 the end does not wait for the missing chunks", SCREEN, "and self._text.last_seq >= finished.last_seq", ""),
    ("6 a final clearance does not clear", SCREEN, "len(text.chunks) - 1 if self.final else self._cleared", "self._cleared if self.final else -1"),
    ("6 the answer never ends", SCREEN, "            self.over = True\n            ops.append", "            ops.append"),
    ("6 chunks after Finished are shown", SCREEN, "if self.finished is not None and event.seq > self.finished.last_seq:\n            return NOTHING", "pass"),
    ("catching up shows what was withdrawn", "catchup.py", "                unsent, edits = [], []\n", ""),
    ("catching up shows what was redacted", "catchup.py", "unsent = _splice(unsent, op.start - held, op.end - held, op)", "unsent = [*unsent, op]"),
]  # fmt: skip


def survives(file: str, old: str, new: str, histories: str) -> bool | None:
    """Replace ``old`` by ``new`` in ``file``, and return whether the tests still pass; None if ``old`` is not found."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in ("schemas", "services/stream", "services/simulator/judge", "tests/support", "tests/unit/stream"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        for package in ("services", "services/simulator", "tests", "tests/unit"):
            (copy / package / "__init__.py").touch()
        target = copy / "services/stream" / file
        source = target.read_text()
        if old not in source:
            return None
        target.write_text(source.replace(old, new, 1))
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "--import-mode=prepend",
            "tests/unit/stream",
        ]
        environment = {
            **os.environ,
            "RAILBUS_HISTORIES": histories,
            "RAILBUS_NO_SHRINK": "1",
            "PYTHONPATH": str(copy),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        run = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=600, check=False)
        return run.returncode == 0


def main() -> int:
    """Run the tests with every mutant, and return the exit code."""
    histories = sys.argv[1] if len(sys.argv) > 1 else "2000"
    if not survives(SCREEN, "", "", "10"):
        sys.exit("the tests fail without a mutant, too")
    alive = 0
    for name, file, old, new in MUTANTS:
        result = survives(file, old, new, histories)
        alive += result is not False
        print({True: "SURVIVED", False: "killed  ", None: "NOT FOUND"}[result], name, flush=True)
    print(f"{len(MUTANTS) - alive} of {len(MUTANTS)} killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
