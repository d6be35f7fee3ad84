"""``.venv-vllm/bin/python -m tests.bench.vllm_model FOLDER``: write the model for benchmarks of vLLM on the CPU.

The model is a Gemma 3 with 6 layers, 768 dimensions and random weights in float32. It is large enough that most of a
step's time goes into reading the weights, and small enough for two cores.
"""

import sys
from pathlib import Path

from tests.vllm.models import make_model


def bench_model(folder: Path) -> Path:
    """Write the model to a folder, and return the folder."""
    return make_model(folder, seed=5, layers=6, hidden=768)


def small_draft(folder: Path) -> Path:
    """Write a draft model for ``bench_model``, with one layer of 64 dimensions, and return its folder."""
    return make_model(folder, seed=6, layers=1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tests.bench.vllm_model FOLDER")
    print(bench_model(Path(sys.argv[1])))
