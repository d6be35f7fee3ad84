"""Fixtures of the vLLM tests, which ``make test-vllm`` runs. Without vLLM, no test in this folder is collected."""

import importlib.util

import pytest

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    from tests.vllm.models import make_model, nudged

# One computing thread: on two cores more of them wait for each other.
SETTINGS = {
    "RAILBUS_VLLM_DTYPE": "float32",  # in bfloat16 greedy answers differ with the size of the batch
    "RAILBUS_VLLM_KV_GIB": "0.125",
    "RAILBUS_VLLM_BLOCK_SIZE": "32",
    "RAILBUS_VLLM_EAGER": "on",
    "RAILBUS_VLLM_DEVICE": "cpu",
    "RAILBUS_VLLM_MAX_LEN": "1024",
    "RAILBUS_VLLM_MAX_SEQS": "16",
}


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Make tiny models. Return the folder of each model by name.

    ``near`` is a drafter that mostly agrees with ``target``. ``far`` has random weights that are unrelated to
    ``target``. ``base`` has no chat template. Answers of ``endless`` do not end by themselves, and ``endless_near`` is
    its drafter. The vocabulary of ``small`` and its drafter ``small_draft`` has 24 tokens. Every other model has a
    vocabulary of 128 tokens.
    """
    root = tmp_path_factory.mktemp("models")
    target = make_model(root / "target", seed=1)
    endless = make_model(root / "endless", seed=7, ends=False)
    small = make_model(root / "small", seed=5, size=24, spread=0.12)
    return {
        "target": target,
        "near": nudged(target, root / "near", seed=2, noise=0.05),
        "far": make_model(root / "far", seed=3, layers=1),
        "base": make_model(root / "base", seed=4, layers=1, template=False),
        "endless": endless,
        "endless_near": nudged(endless, root / "endless_near", seed=8, noise=0.05),
        "small": small,
        "small_draft": nudged(small, root / "small_draft", seed=6, noise=0.5),
    }


@pytest.fixture(scope="session")
def settings():
    return SETTINGS
