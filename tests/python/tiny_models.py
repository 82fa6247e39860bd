"""Random models of a few thousand weights, saved as Hugging Face folders with a tokenizer of 60 characters."""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

VOCABULARY = ["<unk>", "<s>", *string.ascii_letters, *string.digits[:8]]

_LLAMA_LIKE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}

# kind -> (configuration class, what differs from _LLAMA_LIKE)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),  # biases on q, k, v
    "qwen3": ("Qwen3Config", {"head_dim": 16}),  # q/k norms; heads wider than hidden_size / heads
    "mistral": ("MistralConfig", {"sliding_window": 16}),
    "granite": ("GraniteConfig", {"attention_multiplier": 0.2}),  # not 1/sqrt(d)
    "cohere": ("CohereConfig", {}),  # interleaved RoPE
    "olmo2": ("Olmo2Config", {}),  # k_norm over all heads at once
    "gemma2": ("Gemma2Config", {"head_dim": 8, "attn_logit_softcapping": 50.0}),
    "gpt_oss": ("GptOssConfig", {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1}),  # attention sinks
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}),
    "gpt_neox": ("GPTNeoXConfig", {}),
}


def save(folder: Path, kind: str, *, adds_bos: bool = False, **changes: Any) -> None:
    name, differences = KINDS[kind]
    common = {} if kind == "gpt2" else _LLAMA_LIKE
    special = {"bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 0}
    config = getattr(transformers, name)(vocab_size=len(VOCABULARY), **common | special | differences | changes)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config)
    _randomize(model)
    model.save_pretrained(folder)
    tokenizer(adds_bos).save_pretrained(folder)


def _randomize(model: torch.nn.Module) -> None:
    """Everything random, biases and norms too: an initial bias of 0 or norm of 1 would hide that it was left out."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.3)


def tokenizer(adds_bos: bool) -> transformers.PreTrainedTokenizerFast:
    """BPE without merges: each character is a token. (transformers takes no other kind for some models.)"""
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(VOCABULARY)}, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>")


def letters(count: int) -> str:
    """A text of `count` tokens."""
    draw = random.Random(7)
    return "".join(draw.choice(VOCABULARY[2:]) for _ in range(count))
