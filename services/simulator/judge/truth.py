"""A second, simpler computation of a request's state.

At the end of a simulation, the result of this computation is compared with that of the class ``Screen``, which the
services use.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.stream import (
    Chunk,
    Cleared,
    Closed,
    Cutover,
    Failed,
    Finished,
    Recall,
    Started,
    StreamEvent,
    Verdict,
)


@dataclass
class Truth:
    voice: Started | None
    voice_since: int  # index in the log from which the voice's chunks and clearances count
    gate_open: bool
    denied: bool
    stopped: bool
    finished: bool
    closed: Closed | None  # the effective ``Closed``
    sure: bool  # False if it depends on the delivery mode whether the answer is over


def truth(log: Sequence[StreamEvent], *, governed: bool = False) -> Truth:  # noqa: C901, PLR0912, PLR0915 - in one piece: no structure of the fold
    """Compute the state of a request from its events, in the order of the log.

    With ``governed``, require a verdict and an output check even if ``Started`` says that they are off.
    """
    ungated = frozenset[str]() if governed else {"off"}  # values in ``Started`` that turn gate or output check off
    candidates, heard, attempt, masked, since = {1}, None, 1, False, 0
    last_word: Finished | None = None
    stopped = told = answered = final = gate_open = False
    sure, voice = True, None
    closed: Closed | None = None
    chunks_of_voice: set[int] = set()
    verdict: Verdict | None = None
    runs: dict[int, Started] = {}
    withdrawn: set[tuple[int, str]] = set()
    for index, event in enumerate(log):
        if isinstance(event, Started):
            runs.setdefault(event.attempt, event)
        if isinstance(event, Recall) and event.action == "stop":
            withdrawn.add((event.attempt, event.run))
        if isinstance(event, Verdict) and verdict is None:
            verdict = event
        refused = verdict is not None and verdict.decision == "deny"
        sole = runs.get(next(iter(candidates))) if len(candidates) == 1 else None
        mine = getattr(event, "run", None) is not None and any(
            runs.get(candidate) is not None
            and (runs[candidate].attempt, runs[candidate].run)
            == (getattr(event, "attempt", 0), getattr(event, "run", ""))
            for candidate in candidates
        )
        match event:
            case Closed():
                own_end = "denied" if refused else "recalled" if stopped else "answered" if answered else None
                if own_end == "recalled" and not told:
                    own_end = None
                going = own_end is None and last_word is None and event.seen_attempts >= attempt
                holds = {
                    None: True,
                    "answered": own_end == "answered",
                    "denied": own_end == "denied",
                    "recalled": own_end == "recalled",
                    "deadline": own_end is None,
                    "client_gone": own_end is None,
                    "no_masked_prompt": own_end is None,
                    "too_many_open": own_end is None,
                    "unreadable": own_end is None and not runs,
                    "no_verdict": own_end is None
                    and verdict is None
                    and (sole is None or sole.input_gate not in ungated),
                    "attempts_failed": going,
                    "cannot_begin": going and sole is None,
                    "no_first_token": going and heard is None,
                    "stalled": going and _contiguous(chunks_of_voice) <= event.seen_seq,
                }[event.cause]
                if holds:
                    closed = event
                    break
            case Chunk() if mine and not stopped and not refused:
                if heard is None:
                    heard, candidates = event.attempt, {event.attempt}
                chunks_of_voice.add(event.seq)
            case Finished() if mine and not refused:
                if sole is not None and not stopped:
                    last_word = last_word or event
                elif len(candidates) > 1:
                    candidates = candidates - {event.attempt}
            case Failed() if mine and len(candidates) > 1 and not refused:
                candidates = candidates - {event.attempt}
            case Cleared() if sole is not None and (event.attempt, event.run) == (sole.attempt, sole.run):
                final = final or event.final
            case Cutover() if not stopped and not refused and event.attempt == attempt + 1:
                counts = {
                    "ttft": heard is None and last_word is None,
                    "stall": _contiguous(chunks_of_voice) <= event.seen_seq and last_word is None,
                    "hard_error": last_word is None,
                    "mask": verdict is not None and verdict.decision == "mask" and not masked,
                }[event.trigger]
                if counts:
                    attempt = event.attempt
                    race = event.how == "race" and event.trigger == "ttft"
                    candidates = candidates | {attempt} if race else {attempt}
                    masked = masked or event.trigger == "mask"
                    heard, chunks_of_voice = None, set()
                    since, last_word, answered, final = index + 1, None, False, False
        voice = runs.get(next(iter(candidates))) if len(candidates) == 1 else None
        if voice is not None and (voice.attempt, voice.run) in withdrawn and not refused:
            stopped = True  # the recall may be older than the cutover that made this run the voice
        if verdict is not None and verdict.decision != "mask":
            gate_open = verdict.decision == "allow"
        else:
            gate_open = masked or (voice is not None and voice.input_gate in ungated)
        told = told or (stopped and (verdict is not None or gate_open))
        if last_word is not None and gate_open and not stopped and voice is not None:
            complete = set(range(last_word.last_seq + 1)) <= chunks_of_voice
            delivery = voice.delivery if verdict is None or verdict.delivery is None else verdict.delivery
            if complete and voice.output_check in ungated and delivery.mode != "optimistic" and not final:
                sure = sure and answered
            elif complete and (final or voice.output_check in ungated):
                answered = True
    denied = verdict is not None and verdict.decision == "deny"
    return Truth(voice, since, gate_open, denied, stopped, last_word is not None, closed, sure)


def _contiguous(chunks: set[int]) -> int:
    return next(seq for seq in range(len(chunks) + 1) if seq not in chunks) - 1
