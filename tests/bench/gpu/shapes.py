"""Create model folders with the shapes of Gemma 3 27B and 4B but without weights.

vLLM fills the models with made-up weights.
"""

import json
from pathlib import Path

GEMMA = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 262_208,
    "sliding_window": 1_024, "max_position_embeddings": 32_768, "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0, "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False, "tie_word_embeddings": True, "query_pre_attn_scalar": 256, "torch_dtype": "bfloat16",
    "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "sliding_window_pattern": 6,
}  # fmt: skip

SHAPES = {
    "27b": {
        "hidden_size": 5_376, "intermediate_size": 21_504, "num_hidden_layers": 62, "num_attention_heads": 32,
        "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 168,
    },
    "4b": {
        "hidden_size": 2_560, "intermediate_size": 10_240, "num_hidden_layers": 34, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256,
    },
    # For a dry run without a GPU.
    "tiny": {
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 6, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 512, "max_position_embeddings": 2_048,
    },
    "tinier": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512, "max_position_embeddings": 2_048,
    },
}  # fmt: skip


def make(root: Path, name: str) -> Path:
    """Create the folder ``name`` in ``root`` for a model with the shape ``SHAPES[name]``. Return the folder's path."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    config = GEMMA | SHAPES[name]
    layers = config["num_hidden_layers"]
    config["layer_types"] = [
        "full_attention" if (layer + 1) % config["sliding_window_pattern"] == 0 else "sliding_attention"
        for layer in range(layers)
    ]
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder
