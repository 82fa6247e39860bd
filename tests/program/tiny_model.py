"""A random Llama model of two layers with its tokens, needles and calibration, made without torch or transformers."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import h5py
import numpy as np
from kvlab_program import Kvlab

VOCABULARY = 60
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def make(folder: Path, tokens: int = 640) -> Path:
    """`model/`, `text.h5` and `other.h5` of two passages each, `needles.h5` of two tasks and `calibration.h5`."""
    draw = np.random.default_rng(5)
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(CONFIG))
    _write_weights(folder / "model/model.safetensors", draw)
    # Learned rotations need sequences of 328 tokens, and a calibration is cut in two.
    for name, count in (("text.h5", tokens), ("other.h5", 704)):
        with h5py.File(folder / name, "w") as file:
            file.attrs["schema"] = "kvlab.tokens/1"
            file["tokens"] = draw.integers(0, VOCABULARY, (2, count), np.int32)
    with h5py.File(folder / "needles.h5", "w") as file:
        file.attrs["schema"] = "kvlab.needles/1"
        for task in ("single 000300 050%", "keys 000300 050%"):
            file[f"{task}/prompts"] = draw.integers(0, VOCABULARY, (3, 300), np.int32)
            file[f"{task}/answers"] = draw.integers(0, VOCABULARY, (3, 4), np.int32)
    Kvlab(folder).ok(
        "capture", "--model", "model", "--tokens", "other.h5", "--probes", "all", "--out", "calibration.h5"
    )
    return folder


def scale(model: Path, out: Path, matrix: str, factor: float) -> None:
    """The model once more, the matrices of this name in all layers times a factor."""
    shutil.copytree(model, out)
    path = out / "model.safetensors"
    weights = bytearray(path.read_bytes())
    (size,) = struct.unpack("<Q", weights[:8])
    for name, entry in json.loads(weights[8 : 8 + size]).items():
        if matrix in name:
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            weights[begin:end] = (np.frombuffer(bytes(weights[begin:end]), "<f4") * np.float32(factor)).tobytes()
    path.write_bytes(weights)


def _write_weights(path: Path, draw: np.random.Generator) -> None:
    hidden, wide, dim = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    queries, keys = CONFIG["num_attention_heads"] * dim, CONFIG["num_key_value_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, hidden), "model.norm.weight": (hidden,)}
    for layer in range(CONFIG["num_hidden_layers"]):
        of_layer = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (wide, hidden),
            "mlp.up_proj": (wide, hidden),
            "mlp.down_proj": (hidden, wide),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    header, data = {}, b""
    for name, shape in shapes.items():
        spread = 1.5 * shape[-1] ** -0.5 if len(shape) > 1 else 0.3
        weights = (draw.standard_normal(shape) * spread + (len(shape) == 1)).astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(weights)]}
        data += weights
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
