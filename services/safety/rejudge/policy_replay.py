"""Judge the recorded stream log again under another policy, with the safety service's own code.

The result depends only on the text and the policy, not on time. Recorded recalls and clearances do not influence the
decisions.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from schemas.base import AnyEvent, Event
from schemas.registry import reads
from schemas.requests import LONGEST_TOTAL_MS
from schemas.stream import Chunk, Cleared, Recall, StreamEvent
from schemas.topics import STREAMS
from services.policy import Policy
from services.safety.checks.executor import Check
from services.safety.decide.check_types import CheckOutcome, CheckRequest, CheckResult, RunOutput, Tier, Unchecked
from services.safety.decide.recalls import CheckContext
from services.safety.decide.request import RequestCheck
from services.safety.partition import MAX_OPEN, SafetyPartition

UNCHECKED: Final = "unchecked"
"""The category of a recall that was made because a check gave no answer. It says nothing about the policy."""

_GIVEN: Final = reads("safety")[STREAMS.name] - {Cleared, Recall}

KINDS: Final = frozenset(kind.__name__ for kind in _GIVEN | {Cleared, Recall})
"""The kinds of events that ``PolicyReplay.take`` uses."""

RunId = tuple[str, int, str]
"""A request's id, an attempt's number and a run's id."""


@dataclass(slots=True)
class JudgedRun:
    """The recorded recalls of one run, and the recalls under the new policy.

    Attributes:
        recorded: Recalls on the log, by id.
        judged: Recalls under the new policy, each with the length of the run's text, in code points, at the time of
            the recall.
    """

    recorded: dict[str, Recall] = field(default_factory=dict)
    judged: list[tuple[Recall, int]] = field(default_factory=list)


class PolicyReplay:
    """Judges the stream log of one archive, partition by partition, record by record.

    Args:
        checks: The policy's checks, by tier: 1 for NeMo rails, 2 for classifiers.
        wanted: Returns whether to judge the request with this id.

    Attributes:
        runs: The runs with at least one recall, either on the log or under the new policy.
        chunks: Number of chunks that were judged.
        requests: The ids of the judged requests.
        versions: For each policy version, the number of recorded recalls and clearances.
    """

    def __init__(self, policy: Policy, checks: Mapping[Tier, Check], wanted: Callable[[str], bool]) -> None:
        self._policy = policy
        self._checks = checks
        self._wanted = wanted
        self._context = CheckContext("rejudge")
        self._number: int | None = None
        self._partition = SafetyPartition(LONGEST_TOTAL_MS * 1_000, catching_up=False)
        # By open request and run, the number of code points of the run's text so far.
        self._ends: dict[str, dict[str, int]] = {}
        self.runs: dict[RunId, JudgedRun] = {}
        self.chunks = 0
        self.requests: set[str] = set()
        self.versions: dict[str, int] = {}

    async def take(self, partition: int, events: Sequence[AnyEvent]) -> None:
        if partition != self._number:
            self._number = partition
            self._partition = SafetyPartition(LONGEST_TOTAL_MS * 1_000, catching_up=False)
            self._ends.clear()
        wanted, ends, requests = self._wanted, self._ends, self._partition.requests
        if len(ends) > 2 * MAX_OPEN:  # the partition has dropped requests that were never over
            for request_id in ends.keys() - requests.keys():
                del ends[request_id]
        for event in events:
            if type(event) is Chunk:
                assert isinstance(event, Chunk)  # noqa: S101 - for the type checker; comparing types is faster
                request = requests.get(event.request_id)
                if request is not None:
                    self.chunks += 1
                    if (runs := ends.get(event.request_id)) is None:
                        runs = ends[event.request_id] = {}
                    runs[event.run] = event.start + len(event.text)
                    if (outputs := request.add(event)) or request.unread:
                        await self._perform(request, outputs)
            elif not isinstance(event, StreamEvent) or not wanted(event.request_id):
                continue
            elif type(event) in _GIVEN:
                request = self._partition.check_of(event, self._policy, self._context)
                if request is not None:
                    self.requests.add(event.request_id)
                    await self._perform(request, request.take(event))
            else:
                self._note(event)

    def _run(self, event: Recall) -> JudgedRun:
        return self.runs.setdefault((event.request_id, event.attempt, event.run), JudgedRun())

    def _note(self, event: Event) -> None:
        if isinstance(event, Recall):
            self._run(event).recorded.setdefault(event.recall_id, event)
        if isinstance(event, Recall | Cleared):
            self.versions[event.policy_version] = self.versions.get(event.policy_version, 0) + 1

    async def _perform(self, request: RequestCheck, outputs: Sequence[RunOutput]) -> None:
        waiting = deque(outputs)
        while waiting or request.unread:
            if not waiting:
                waiting.extend(request.read())
                continue
            output = waiting.popleft()
            if isinstance(output, CheckRequest):
                outcome = await _outcome(self._checks[output.tier], output.text)
                waiting.extend(request.take_outcome(output, outcome))
            elif request.new(output) and isinstance(output, Recall):
                chars = max(self._ends.get(output.request_id, {}).get(output.run, 0), output.end)
                self._run(output).judged.append((output, chars))
        self._partition.forget_if_over(request)
        if request.over:
            self._ends.pop(request.request_id, None)


async def _outcome(check: Check, text: str) -> CheckOutcome:
    try:
        return CheckResult(await check.find(text))
    except Exception as error:  # noqa: BLE001 - whatever a check raises, the text was not checked
        return Unchecked(type(error).__name__)
