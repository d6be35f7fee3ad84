"""Make tiny Gemma 3 models with random weights. They run like real models, and generate nonsense."""

import json
from pathlib import Path

SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "user", "model"]

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'system' and not loop.first %}{{ raise_exception('a system turn comes first') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m['role'] == 'assistant' else 'user' }} {{ m['content'] }} <end_of_turn>"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model{% endif %}"
)


def vocabulary(size):
    """Return ``size`` tokens: the special tokens, then words of one syllable, then words of two."""
    words = SYLLABLES + [a + b for a in SYLLABLES for b in SYLLABLES]
    return [*SPECIAL, *words[: size - len(SPECIAL)]]


def sentence(seed, length):
    """Return ``length`` pseudo-random words.

    For a tokenizer that ``make_tokenizer`` made with a ``size`` of 78 or more, each of these words is one token.
    """
    words = vocabulary(78)[len(SPECIAL) :]
    return " ".join(words[(seed * 7_919 + i * (seed + 3) + i * i) % len(words)] for i in range(length))


def make_tokenizer(folder: Path, size: int, *, template: bool = True):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(WordLevel({word: i for i, word in enumerate(vocabulary(size))}, unk_token="<unk>"))
    inner.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<unk>",
        additional_special_tokens=["<start_of_turn>", "<end_of_turn>"],
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATE if template else None
    tokenizer.save_pretrained(folder)


def make_model(
    folder: Path, *, seed: int, size=128, layers=2, hidden=64, spread=0.3, template=True, context=1024, ends=True
):
    """Make a target or draft model in ``folder``. Return ``folder``.

    Every second layer has a sliding window of 64 tokens.

    Args:
        size: Number of tokens in the vocabulary.
        spread: Standard deviation of the weights.
        template: Whether the model has a chat template.
        context: Maximum number of tokens of prompt and answer.
        ends: If False, a greedy answer always has the maximum length. If True, the model may end it earlier.
    """
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(seed)
    config = Gemma3TextConfig(
        vocab_size=size, hidden_size=hidden, intermediate_size=hidden * 2, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=context, sliding_window=64,
        layer_types=["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(layers)],
        # Tied embeddings make a random model repeat one token, small weights make it indifferent.
        tie_word_embeddings=False, initializer_range=spread, query_pre_attn_scalar=32,
        pad_token_id=0, eos_token_id=1, bos_token_id=2, dtype="float32",
    )  # fmt: skip
    model = Gemma3ForCausalLM(config).to(torch.float32)
    if not ends:
        with torch.no_grad():
            model.lm_head.weight[config.eos_token_id] = 0  # its score is 0, and some of the 127 others are above 0
    model.save_pretrained(folder)
    make_tokenizer(folder, size, template=template)
    return folder


def nudged(source: Path, folder: Path, *, seed: int, noise: float, template=True):
    """Save a copy of the model in ``source`` to ``folder``, with noise added to its weights. Return ``folder``.

    The copy serves as a draft model for the model in ``source``.
    ``noise`` is the standard deviation of the noise, relative to that of the weights.
    """
    import torch
    from transformers import Gemma3ForCausalLM

    torch.manual_seed(seed)
    model = Gemma3ForCausalLM.from_pretrained(source, dtype=torch.float32)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(torch.randn_like(weights) * noise * weights.std())
    model.save_pretrained(folder)
    make_tokenizer(folder, json.loads((source / "config.json").read_text())["vocab_size"], template=template)
    return folder
