import errno

from services.broker.storage.error_log import REPEAT_S, StorageErrorLog

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_logged_once_a_minute_with_its_remedy():
    log = StorageErrorLog()
    first = log.line_for("t-0", FULL, 10.0)
    assert first == "t-0: the data directory cannot be written (No space left on device): free some space on its disk"
    assert log.line_for("t-0", FULL, 11.0) is None
    assert log.line_for("t-1", FULL, 12.0) is None
    later = log.line_for("t-2", OSError(errno.EIO, "Input/output error"), 10.0 + REPEAT_S)
    assert later.endswith("(Input/output error); 2 more such errors since the last line")
