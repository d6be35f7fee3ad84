"""Test how engines are created. If an engine cannot be created, the error says what is wrong."""

import subprocess
import sys

import pytest

from services.generator.engines import make
from services.generator.engines.openai import OpenAISettings
from services.runtime.errors import UserError


@pytest.mark.parametrize(
    ("engine", "env", "message"),
    [
        ("openai", {}, "engine openai needs RAILBUS_UPSTREAM_URL, such as http://127.0.0.1:8000"),
        ("openai", {"RAILBUS_UPSTREAM_URL": "127.0.0.1:8000"}, "RAILBUS_UPSTREAM_URL must be an address such as"),
        ("openai", {"RAILBUS_UPSTREAM_URL": "ftp://x"}, "RAILBUS_UPSTREAM_URL must be an address"),
        ("openai", {"RAILBUS_UPSTREAM_URL": "http://x:99999"}, "RAILBUS_UPSTREAM_URL must be an address"),
        ("openai", {"RAILBUS_UPSTREAM_URL": "http://a..b"}, "RAILBUS_UPSTREAM_URL must be an address"),
        (
            "openai",
            {"RAILBUS_UPSTREAM_URL": "http://me:x@host", "RAILBUS_UPSTREAM_KEY": "k"},
            "RAILBUS_UPSTREAM_URL has a user's name",
        ),
        ("openai", {"RAILBUS_UPSTREAM_CONNECTIONS": "0"}, "RAILBUS_UPSTREAM_CONNECTIONS='0': must be"),
        (
            "openai",
            {"RAILBUS_UPSTREAM_URL": "http://x", "RAILBUS_UPSTREAM_BODY": "[1]"},
            "RAILBUS_UPSTREAM_BODY must be a JSON object",
        ),
        ("simulated", {"RAILBUS_SIM_GPU": "h900"}, "GPU 'h900' is not in the catalogue; it has rtx-4080"),
        ("simulated", {"RAILBUS_SIM_TARGET": "gpt"}, "model 'gpt' is not in the catalogue"),
        ("simulated", {"RAILBUS_SIM_DRAFT": "gpt"}, "model 'gpt' is not in the catalogue"),
        ("simulated", {"RAILBUS_SIM_GPU": "rtx-4080"}, "gemma-3-27b in fp8 needs 26.5 GiB .* rtx-4080 has 16 GiB"),
        ("simulated", {"RAILBUS_SIM_SCRIPT": "fly"}, "RAILBUS_SIM_SCRIPT='fly': 'fly' is not a part of a script"),
        ("simulated", {"RAILBUS_SIM_ALPHA": "1.5"}, "RAILBUS_SIM_ALPHA='1.5': must be"),
    ],
)
def test_settings_that_make_no_engine(engine, env, message):
    with pytest.raises(UserError, match=message):
        make(engine, env)


def test_llama_without_its_packages(monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(UserError, match=r"engine llama needs xllamacpp: pip install 'railbus\[embedded\]'"):
        make("llama", {"RAILBUS_MODEL_PATH": "model.gguf"})


def test_llama_without_weights(monkeypatch, tmp_path):
    monkeypatch.setattr("services.runtime.weights.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"no weights: `railbus up` downloads them .*, or set RAILBUS_MODEL_PATH to a"):
        make("llama", {"RAILBUS_CACHE_DIR": str(tmp_path)})


def test_a_secret_is_not_shown():
    engine = make("openai", {"RAILBUS_UPSTREAM_URL": "http://127.0.0.1:1", "RAILBUS_UPSTREAM_KEY": "sk-secret"})
    assert "sk-secret" not in repr(vars(engine))


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1"),
        ("https://host/openai", "https://host/openai/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
        ("http://my_host.local.:8000", "http://my_host.local.:8000/v1"),
    ],
)
def test_the_upstreams_address(url, base):
    assert OpenAISettings(upstream_url=url).base() == base


def test_nothing_heavy_is_imported_before_it_is_needed():
    code = (
        "import sys, services.worker.worker, services.generator.engines;"
        "print([n for n in ('xllamacpp', 'vllm', 'services.physics.roofline') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
