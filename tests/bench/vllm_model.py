"""``.venv-vllm/bin/python -m tests.bench.vllm_model FOLDER``: writes the model that benches of vLLM on the CPU run.

A Gemma 3 of 6 layers and 768 dimensions with random weights, in float32: large enough that reading its weights takes
most of a step, small enough for two cores.
"""

import sys
from pathlib import Path

from tests.vllm.models import make_model


def bench_model(folder: Path) -> Path:
    """Write the model."""
    return make_model(folder, seed=5, layers=6, hidden=768)


def small_draft(folder: Path) -> Path:
    """Write a drafter with its vocabulary: one layer of 64 dimensions."""
    return make_model(folder, seed=6, layers=1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.bench.vllm_model FOLDER")
    print(bench_model(Path(sys.argv[1])))
