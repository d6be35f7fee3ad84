"""Test that ``return_large_blocks`` makes the allocator return freed memory to the operating system."""

import subprocess
import sys

import pytest

from services.runtime.process import return_large_blocks

PROGRAM = """
import sys
from services.runtime.process import return_large_blocks

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

if sys.argv[1] == "told":
    assert return_large_blocks()
small = []
for size in range(100_000, 20_000_000, 400_000):  # as larger ones are freed, larger ones are kept
    b"x" * size
large = []
for _ in range(200):
    large.append(b"x" * (200_000 + len(large)))
    small.append(b"x" * (600 + len(large)))
before = resident()
del large
print((before - resident()) >> 20)
"""


@pytest.mark.skipif(not return_large_blocks(), reason="this C library's allocator cannot be told")
def test_large_blocks_are_given_back():
    given_back = subprocess.run([sys.executable, "-c", PROGRAM, "told"], capture_output=True, text=True, check=True)
    assert int(given_back.stdout) >= 30  # of 38 MiB
