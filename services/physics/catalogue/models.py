"""Catalogue of language models: the numbers of layers, heads and parameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer with gated feed-forward layers.

    The numbers of parameters do not include norms, expert routers and vision towers.

    Attributes:
        global_layers: Number of layers that attend to the whole context. The other layers are called local.
        window: Number of tokens that local layers attend to; None if there are no local layers.
        hidden: Width of the residual stream.
        intermediate: Width of the feed-forward layers.
        heads: Number of query heads.
        vocab: Number of rows of the embedding.
        tied: Whether the output head shares its weights with the embedding.
        experts: Number of experts in a layer; 1 in a dense model.
        active_experts: Number of experts that each token is routed to.
    """

    name: str
    layers: int
    global_layers: int
    window: int | None
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    source: str
    experts: int = 1
    active_experts: int = 1

    def __post_init__(self) -> None:
        for field in (
            "layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab", "experts", "active_experts",
        ):  # fmt: skip
            if getattr(self, field) < 1:
                raise ValueError(f"{self.name}: {field} must be at least 1, not {getattr(self, field)}")
        if self.active_experts > self.experts:
            raise ValueError(f"{self.name}: active_experts must be at most {self.experts}, not {self.active_experts}")
        if not 0 <= self.global_layers <= self.layers:
            raise ValueError(f"{self.name}: global_layers must be within 0 and {self.layers}, not {self.global_layers}")
        if self.window is None and self.global_layers != self.layers:
            raise ValueError(f"{self.name}: {self.layers - self.global_layers} local layers need a window")

    @property
    def local_layers(self) -> int:
        return self.layers - self.global_layers

    @property
    def linear_parameters(self) -> int:
        """Number of parameters that one token is multiplied with. The embedding and the output head do not count."""
        return self._attention_parameters + self.active_experts * self._expert_parameters

    @property
    def stored_linear_parameters(self) -> int:
        """Number of parameters in memory, with all experts, without embedding and output head."""
        return self._attention_parameters + self.experts * self._expert_parameters

    def read_linear_parameters(self, tokens: float) -> float:
        """Return the number of parameters that a step of ``tokens`` tokens reads, without embedding and output head.

        Only experts to which a token is routed are read.
        """
        if self.experts == 1:
            return self.linear_parameters
        idle: float = (1 - self.active_experts / self.experts) ** max(1.0, tokens)
        return self._attention_parameters + self.experts * (1 - idle) * self._expert_parameters

    @property
    def head_parameters(self) -> int:
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """Number of all parameters. An embedding that is shared with the output head counts once."""
        return self.stored_linear_parameters + self.head_parameters * (1 if self.tied else 2)

    @property
    def _attention_parameters(self) -> int:
        return self.layers * 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)

    @property
    def _expert_parameters(self) -> int:
        return self.layers * 3 * self.hidden * self.intermediate


_GEMMA3: Final = "config.json of google/gemma-3-{}-it with the defaults of Gemma3TextConfig"

_ALL: Final = (
    Model(
        name="gemma-3-4b", layers=34, global_layers=5, window=1024, hidden=2560, intermediate=10240, heads=8,
        kv_heads=4, head_dim=256, vocab=262_208, tied=True, source=_GEMMA3.format("4b"),
    ),
    Model(
        name="gemma-3-12b", layers=48, global_layers=8, window=1024, hidden=3840, intermediate=15360, heads=16,
        kv_heads=8, head_dim=256, vocab=262_208, tied=True, source=_GEMMA3.format("12b"),
    ),
    Model(
        name="gemma-3-27b", layers=62, global_layers=10, window=1024, hidden=5376, intermediate=21504, heads=32,
        kv_heads=16, head_dim=128, vocab=262_208, tied=True, source=_GEMMA3.format("27b"),
    ),
    Model(
        name="gemma-3-1b", layers=26, global_layers=4, window=512, hidden=1152, intermediate=6912, heads=4,
        kv_heads=1, head_dim=256, vocab=262_144, tied=True, source=_GEMMA3.format("1b"),
    ),
    Model(
        name="gemma-3-270m", layers=18, global_layers=3, window=512, hidden=640, intermediate=2048, heads=4,
        kv_heads=1, head_dim=256, vocab=262_144, tied=True, source=_GEMMA3.format("270m"),
    ),
    Model(
        name="gemma-2-2b", layers=26, global_layers=13, window=4096, hidden=2304, intermediate=9216, heads=8,
        kv_heads=4, head_dim=256, vocab=256_000, tied=True, source="config.json of google/gemma-2-2b",
    ),
    Model(
        name="gemma-2-9b", layers=42, global_layers=21, window=4096, hidden=3584, intermediate=14336, heads=16,
        kv_heads=8, head_dim=256, vocab=256_000, tied=True, source="config.json of google/gemma-2-9b",
    ),
    Model(
        name="llama-3-8b", layers=32, global_layers=32, window=None, hidden=4096, intermediate=14336, heads=32,
        kv_heads=8, head_dim=128, vocab=128_256, tied=False, source="config.json of meta-llama/Meta-Llama-3-8B",
    ),
    Model(
        name="llama-3-70b", layers=80, global_layers=80, window=None, hidden=8192, intermediate=28672, heads=64,
        kv_heads=8, head_dim=128, vocab=128_256, tied=False, source="config.json of meta-llama/Meta-Llama-3-70B",
    ),
    Model(
        name="llama-2-7b", layers=32, global_layers=32, window=None, hidden=4096, intermediate=11008, heads=32,
        kv_heads=32, head_dim=128, vocab=32_000, tied=False, source="config.json of meta-llama/Llama-2-7b-hf",
    ),
    Model(
        name="llama-2-13b", layers=40, global_layers=40, window=None, hidden=5120, intermediate=13824, heads=40,
        kv_heads=40, head_dim=128, vocab=32_000, tied=False, source="config.json of meta-llama/Llama-2-13b-hf",
    ),
    Model(
        name="llama-2-70b", layers=80, global_layers=80, window=None, hidden=8192, intermediate=28672, heads=64,
        kv_heads=8, head_dim=128, vocab=32_000, tied=False, source="config.json of meta-llama/Llama-2-70b-hf",
    ),
    Model(
        name="mistral-7b", layers=32, global_layers=32, window=None, hidden=4096, intermediate=14336, heads=32,
        kv_heads=8, head_dim=128, vocab=32_768, tied=False, source="config.json of mistralai/Mistral-7B-Instruct-v0.3",
    ),
    Model(
        name="mixtral-8x7b", layers=32, global_layers=32, window=None, hidden=4096, intermediate=14336, heads=32,
        kv_heads=8, head_dim=128, vocab=32_000, tied=False, experts=8, active_experts=2,
        source="config.json of mistralai/Mixtral-8x7B-Instruct-v0.1",
    ),
    Model(
        name="tinyllama-1.1b", layers=22, global_layers=22, window=None, hidden=2048, intermediate=5632, heads=32,
        kv_heads=4, head_dim=64, vocab=32_000, tied=False, source="config.json of TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    ),
    Model(
        name="gemma-2-27b", layers=46, global_layers=23, window=4096, hidden=4608, intermediate=36864, heads=32,
        kv_heads=16, head_dim=128, vocab=256_000, tied=True, source="config.json of google/gemma-2-27b",
    ),
    Model(
        name="smollm2-135m", layers=30, global_layers=30, window=None, hidden=576, intermediate=1536, heads=9,
        kv_heads=3, head_dim=64, vocab=49_152, tied=True, source="config.json of HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
)  # fmt: skip

MODELS: Final[Mapping[str, Model]] = MappingProxyType({model.name: model for model in _ALL})


def model(name: str) -> Model:
    """Return the model with this name.

    Raises:
        ValueError: The name is not in the catalogue.
    """
    found = MODELS.get(name.lower())
    if found is None:
        raise ValueError(f"model {name!r} is not in the catalogue; it has {', '.join(MODELS)}")
    return found
