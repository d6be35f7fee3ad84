"""Tests of the HTML page of one request."""

import json
import re

from schemas.topics import STREAMS
from services.bus import Received
from services.cli.audit.page import timeline_page
from services.cli.audit.refold import FoldedOp
from services.stream.ops import Show
from tests.support.request_events import RequestEvents


def test_no_text_of_an_answer_ends_the_data_of_the_page_or_hides_its_end():
    asked = RequestEvents()
    records = [Received(STREAMS.name, 0, 0, 1_000, asked.started(), None)]
    text = "<!-- <script> </script> <b>"
    op = Show(text=text, tokens=1)
    page = timeline_page(asked.id, records, [FoldedOp(op, "0:0:0", 1_000, 0)], [], None)
    data = re.search(r'id="ops">(.*?)</script>', page, re.DOTALL)[1]
    assert "<" not in data
    assert json.loads(data)[0]["text"] == text
