import os
from collections.abc import Mapping
from threading import Lock
from typing import Final

from msgspec import structs

from schemas.batches import BatchProgress, ResultPart
from schemas.requests import Deadlines, Delivery, Request
from schemas.stream import OutputCheck
from services.batch.job import RecordResult
from services.jobs.ids import line_request_id
from services.jobs.prepare import JobLines, JobPlan
from services.jobs.result_lines import LineAnswer, result_line
from services.jobs.results import part_record
from services.jobs.store import FolderStore
from services.runtime.files import sync_folder

DELIVERIES: Final[Mapping[OutputCheck, Delivery]] = {"on": Delivery(mode="gated"), "off": Delivery()}
"""Delivery mode for each value of the setting ``output_check``.

Nobody reads a batch answer while it streams. So if answers are checked, no text is delivered before the check.
"""


class JobFiles:
    """The input file of a job, and the part file to which this service appends results.

    Args:
        plan: The result of reading the input.
        part: Name of the new part file.

    Attributes:
        length: Length of the part file with all appended results, in bytes.
    """

    def __init__(self, store: FolderStore, batch_id: str, input_file: str, plan: JobPlan, part: str) -> None:
        self.plan = plan
        self.part = part
        self._batch_id = batch_id
        folder = store.work_folder(batch_id)
        self._lines = JobLines(store, batch_id, input_file)
        try:
            self._lines.open_input()
            self._file = (folder / part).open("wb", buffering=0)  # a buffer would lose count on a full disk
        except OSError:
            self._lines.close()
            raise
        self._unwritten = bytearray()
        self._syncing = Lock()
        self.length = 0
        sync_folder(folder)

    def request(
        self,
        place: int,
        attempt: int,
        *,
        tenant: str,
        at_us: int,
        source: str,
        deadlines: Deadlines,
        check: OutputCheck,
    ) -> Request:
        """Return the request of a line.

        Raises:
            BadLine: Another version of Railbus accepted the line. This version does not.
            OSError: The input cannot be read.
        """
        line = self._lines.line(place)
        return Request(
            request_id=line_request_id(self._batch_id, place, attempt), tenant=tenant, at=at_us, source=source,
            model=line.model, messages=line.messages, sampling=line.sampling, lane="batch", delivery=DELIVERIES[check],
            fallback="off", deadlines=deadlines,
        )  # fmt: skip

    def append(self, done: RecordResult) -> None:
        number, custom_id = self._lines.number(done.place), self._lines.custom_id(done.place)
        content = result_line(self._batch_id, done.place, done.attempt, number, custom_id, done.result)
        record = part_record(done.place, is_answer=isinstance(done.result, LineAnswer), line=content)
        self._unwritten += record
        self.length += len(record)

    def sync(self) -> None:
        """Write the appended results to the disk. After an error, the next call continues where this one ended.

        A call after ``close`` does nothing. The batch service calls this method in a thread.
        """
        with self._syncing:
            if self._file.closed:
                return
            while self._unwritten:
                del self._unwritten[: self._file.write(self._unwritten)]
            os.fsync(self._file.fileno())

    def noted(self, progress: BatchProgress) -> BatchProgress:
        """Return a copy of the progress event, with the current length of the part file."""
        return structs.replace(progress, parts=(*progress.parts[:-1], ResultPart(name=self.part, length=self.length)))

    def close(self) -> None:
        with self._syncing:
            self._file.close()
        self._lines.close()
