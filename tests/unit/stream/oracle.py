"""The rules of the fold said a second time, as naively as possible: over a whole prefix at once, keeping nothing.

Slow and plain where ``Screen`` is incremental. The two must agree on whose voice it is, which spans are withdrawn, and
whether the text is stopped, refused or behind the gate.
"""

from dataclasses import dataclass

from schemas.stream import (
    Chunk,
    Closed,
    Cutover,
    Failed,
    Finished,
    Recall,
    Started,
    Verdict,
)


@dataclass
class Truth:
    voice: Started | None
    voice_since: int  # index in the log from which this voice's chunks and clearances count
    gate_open: bool
    denied: bool
    stopped: bool
    finished: bool


def truth(log) -> Truth:  # noqa: C901 - said in one piece, so that it shares no structure with the fold
    """What holds after this prefix of the log."""
    end = next((index for index, event in enumerate(log) if isinstance(event, Closed)), len(log))
    log = log[:end]
    verdict = next((event for event in log if isinstance(event, Verdict)), None)
    candidates, heard, attempt, masked, since = {1}, None, 1, False, 0
    finished = stopped = refused = False
    chunks_of_voice: set[int] = set()
    seen_verdict = None
    runs: dict[int, Started] = {}
    withdrawn: set[tuple[int, str]] = set()
    for index, event in enumerate(log):
        if isinstance(event, Started):
            runs.setdefault(event.attempt, event)
        if isinstance(event, Recall) and event.action == "stop":
            withdrawn.add((event.attempt, event.run))
        if isinstance(event, Verdict) and seen_verdict is None:
            seen_verdict = event
            refused = event.decision == "deny"
        if refused:
            break
        sole = runs.get(next(iter(candidates))) if len(candidates) == 1 else None
        mine = getattr(event, "run", None) is not None and any(
            runs.get(candidate) is not None
            and (runs[candidate].attempt, runs[candidate].run) == (event.attempt, event.run)
            for candidate in candidates
        )
        match event:
            case Chunk() if mine and not stopped:
                if heard is None:
                    heard, candidates = event.attempt, {event.attempt}
                chunks_of_voice.add(event.seq)
            case Finished() if mine:
                if sole is not None and not stopped:
                    finished = True
                elif len(candidates) > 1:
                    candidates = candidates - {event.attempt}
            case Failed() if mine and len(candidates) > 1:
                candidates = candidates - {event.attempt}
            case Cutover() if not stopped and event.attempt == attempt + 1:
                contiguous = 0
                while contiguous in chunks_of_voice:
                    contiguous += 1
                counts = {
                    "ttft": heard is None and not finished,
                    "stall": contiguous - 1 <= event.seen_seq and not finished,
                    "hard_error": not finished,
                    "mask": seen_verdict is not None and seen_verdict.decision == "mask" and not masked,
                }[event.trigger]
                if counts:
                    attempt = event.attempt
                    race = event.how == "race" and event.trigger == "ttft"
                    candidates = candidates | {attempt} if race else {attempt}
                    masked = masked or event.trigger == "mask"
                    heard, chunks_of_voice = None, set()
                    since, finished = index + 1, False
        heard_now = runs.get(next(iter(candidates))) if len(candidates) == 1 else None
        if heard_now is not None and (heard_now.attempt, heard_now.run) in withdrawn:
            stopped = True  # also by a recall from before it had the floor
    for event in log:  # a denial ends the loop above early
        if isinstance(event, Started):
            runs.setdefault(event.attempt, event)
    voice = runs.get(next(iter(candidates))) if len(candidates) == 1 else None
    if verdict is not None and verdict.decision != "mask":
        gate_open = verdict.decision == "allow"
    else:
        gate_open = masked or (voice is not None and voice.input_gate == "off")
    denied = verdict is not None and verdict.decision == "deny"
    return Truth(voice, since, gate_open, denied, stopped, finished)
