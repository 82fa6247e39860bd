"""--gradients stores what autograd gives for the loss, taken here another way: float64, eager attention, and zeros that are
added to keys and values and asked for their gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import capture_hf
import h5py
import numpy as np
import pytest
import torch
import transformers
from conftest import Outcome
from kvlab_capture import schema
from transformers.integrations.sdpa_attention import sdpa_attention_forward

TOKENS = 40
MODELS = {
    "llama": {},
    "qwen3": {},
    "mistral": {},  # a window of 16 tokens
    "cohere": {},  # scales its logits
    "granite": {},  # and its residual stream
}


def own_gradients(folder: Path, tokens: np.ndarray) -> dict[str, torch.Tensor]:
    """`layer/grad_k` and `layer/grad_v`, float64 [B, Hkv, T, d], of the mean loss of each passage."""
    zeros: dict[str, torch.Tensor] = {}

    def added(name: str, x: torch.Tensor) -> torch.Tensor:
        zeros[name] = torch.zeros_like(x, requires_grad=True)
        return x + zeros[name]

    def attention(module, query, key, value, mask, **options):  # noqa: ANN001, ANN202
        key, value = added(f"{module.layer_idx}/grad_k", key), added(f"{module.layer_idx}/grad_v", value)
        return sdpa_attention_forward(module, query, key, value, mask, **options)

    transformers.AttentionInterface.register("kvlab_test_zeros", attention)
    transformers.AttentionMaskInterface.register("kvlab_test_zeros", transformers.masking_utils.sdpa_mask)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    model.set_attn_implementation("kvlab_test_zeros")
    passages = []
    for row in tokens:
        ids = torch.from_numpy(row).long()[None]
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        passages.append({name: x.grad for name, x in zeros.items()})
    return {name: torch.cat([passage[name] for passage in passages]) for name in passages[0]}


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_are_autograds(
    kind: str, tiny: Callable[..., Path], tmp_path: Path, program: Callable[..., Outcome]
) -> None:
    import tiny_models

    folder, out = tiny(kind, **MODELS[kind]), tmp_path / "kv.h5"
    (tmp_path / "letters.txt").write_text(tiny_models.letters(2 * TOKENS))
    arguments = ["--model", folder, "--text", tmp_path / "letters.txt", "--tokens", TOKENS, "--passages", 2,
                 "--layers", "0,2", "--gradients", "--out", out]  # fmt: skip
    assert program(capture_hf, *arguments)[0] == 0
    with h5py.File(out) as file:
        own = own_gradients(folder, file["tokens"][...])
        assert "next-token" in file.attrs["loss"]
        for layer in (0, 2):
            for name in ("grad_k", "grad_v"):
                stored, theirs = file[f"layer_{layer:03d}/{name}"], own[f"{layer}/{name}"].numpy()
                assert stored.dtype == np.float32 and stored.shape == file[f"layer_{layer:03d}/k"].shape
                largest = np.abs(theirs).max()
                assert largest > 1e-5
                np.testing.assert_allclose(stored[...], theirs, atol=1e-4 * largest, rtol=0)
                # No later token's loss sees the last key.
                assert np.abs(stored[:, :, -1]).max() == 0


def test_the_rest_of_the_file_stays_and_fp16_keeps_small_gradients(
    tiny: Callable[..., Path], text: Path, program: Callable[..., Outcome]
) -> None:
    files = {}
    for dtype, flag in (("float32", False), ("float32", True), ("float16", True), ("bfloat16", True)):
        out = text.with_name(f"{dtype}{flag}.h5")
        arguments = ["--model", tiny("llama"), "--text", text, "--tokens", 20, "--dtype", dtype, "--out", out]
        assert program(capture_hf, *arguments, *(["--gradients"] if flag else []))[0] == 0
        files[dtype, flag] = h5py.File(out)
    plain, with_gradients = files["float32", False]["layer_001"], files["float32", True]["layer_001"]
    assert set(with_gradients) - set(plain) == {"grad_k", "grad_v"}
    for name in plain:
        np.testing.assert_array_equal(plain[name][...], with_gradients[name][...])
    full = with_gradients["grad_v"][...]
    assert files["float16", True]["layer_001/grad_v"].dtype == np.float32
    np.testing.assert_array_equal(files["float16", True]["layer_001/grad_v"][...], full)
    brain = schema.decode(files["bfloat16", True]["layer_001/grad_v"])
    np.testing.assert_array_equal(brain, torch.from_numpy(full).bfloat16().float().numpy())


def test_one_token_has_no_loss(tiny: Callable[..., Path], text: Path, program: Callable[..., Outcome]) -> None:
    out = text.with_name("one.h5")
    arguments = ["--model", tiny("llama"), "--text", text, "--tokens", 1, "--gradients", "--out", out]
    code, _, printed = program(capture_hf, *arguments)
    assert code == 2 and "at least 2 tokens" in printed and not out.exists()
