"""softmax(q k^T / sqrt d) v W_O^T from a capture is the attention module's own output, on tiny random models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import capture_hf
import h5py
import numpy as np
import pytest
import torch
import transformers
from conftest import Outcome
from kvlab_capture import schema

TOKENS = 48

CASES = {
    "llama_gqa": ("llama", {}),
    "llama_mqa": ("llama", {"num_key_value_heads": 1}),
    "llama_mha": ("llama", {"num_key_value_heads": 4}),
    "llama_biases": ("llama", {"attention_bias": True}),
    "qwen2": ("qwen2", {}),
    "qwen2_some_layers_slide": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "mistral": ("mistral", {}),
    "mistral_no_window": ("mistral", {"sliding_window": None}),
    "granite_own_scale": ("granite", {}),
    "cohere_interleaved": ("cohere", {}),
    "olmo2": ("olmo2", {}),
}


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest, tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple:
    """(name, model folder, capture with all layers and probes, float32)."""
    import tiny_models

    kind, changes = CASES[request.param]
    folder, work = tiny(kind, **changes), tmp_path_factory.mktemp("case")
    (work / "letters.txt").write_text(tiny_models.letters(2 * TOKENS))
    out = work / "kv.h5"
    arguments = [
        "--model",
        folder,
        "--text",
        work / "letters.txt",
        "--tokens",
        TOKENS,
        "--passages",
        2,
        "--probes",
        "all",
    ]
    assert capture_hf.main([str(a) for a in [*arguments, "--layers", "all", "--out", out]]) == 0
    return request.param, folder, out


def own_outputs(folder: Path, tokens: np.ndarray) -> dict[int, torch.Tensor]:
    """Layer -> the attention module's output [B, T, D] in an eager forward, o_proj's bias taken off."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    outputs: dict[int, torch.Tensor] = {}

    def keep(module: torch.nn.Module, _args: Any, output: Any) -> None:
        bias = module.o_proj.bias
        outputs[module.layer_idx] = output[0] if bias is None else output[0] - bias

    for layer in model.model.layers:
        layer.self_attn.register_forward_hook(keep)
    with torch.no_grad():
        model(torch.from_numpy(tokens).long())
    return outputs


def attend(group: h5py.Group, positions: np.ndarray) -> np.ndarray:
    """[B, P, D] from a layer of a capture, in float64."""
    q, k, v, w_o = (schema.decode(group[name]).astype(np.float64) for name in ("q", "k", "v", "w_o"))
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat(repeats, axis=1), v.repeat(repeats, axis=1)  # query head i reads KV head i // repeats
    scores = np.einsum("bhpd,bhtd->bhpt", q, k) / np.sqrt(q.shape[-1])
    t, p = np.arange(k.shape[2]), positions[:, None]
    window = group.attrs.get("sliding_window", k.shape[2])
    scores = np.where((t <= p) & (t > p - window), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = np.einsum("bhpt,bhtd->bphd", weights, v)
    return out.reshape(*out.shape[:2], -1) @ w_o.T


def test_output_equals_the_modules_own(case: tuple) -> None:
    _, folder, path = case
    with h5py.File(path) as file:
        own = own_outputs(folder, file["tokens"][...])
        for layer in range(3):
            mine = attend(file[f"layer_{layer:03d}"], file["positions"][...])
            theirs = own[layer].numpy()
            assert np.abs(theirs).max() > 0.1  # else 1e-5 would say nothing
            np.testing.assert_allclose(mine, theirs, atol=1e-5 * max(1.0, np.abs(theirs).max()), rtol=0)


def test_shapes_and_attributes_are_the_contracts(case: tuple) -> None:
    name, folder, path = case
    config = transformers.AutoConfig.from_pretrained(folder)
    q_heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // q_heads
    with h5py.File(path) as file:
        attributes = file.attrs
        assert attributes["schema"] == "kvlab.capture/1"
        assert (attributes["n_q_heads"], attributes["n_kv_heads"], attributes["head_dim"]) == (q_heads, kv_heads, dim)
        assert attributes["rope"] == "post"
        assert attributes["rope_theta"] == config.rope_parameters["rope_theta"]
        assert attributes["rope_layout"] == ("interleaved" if name == "cohere_interleaved" else "half")
        assert attributes["model"] == folder.name
        assert len(attributes["text_sha256"]) == 64 and attributes["created_by"].startswith("kvlab")
        assert file["tokens"].shape == (2, TOKENS) and file["tokens"].dtype == np.int32
        assert file["positions"].dtype == np.int32
        for layer in range(3):
            group = file[f"layer_{layer:03d}"]
            assert group.attrs["layer"] == layer
            assert group["q"].shape == (2, q_heads, TOKENS, dim)
            assert all(group[x].shape == (2, kv_heads, TOKENS, dim) for x in ("k", "v", "k_pre"))
            assert group["w_o"].shape == (config.hidden_size, q_heads * dim)
            assert group["hidden_absmax"].shape == (2, TOKENS)


def test_keys_before_rope_turn_into_keys(case: tuple) -> None:
    """RoPE written out here once more, from theta alone."""
    _, _, path = case
    with h5py.File(path) as file:
        theta, layout = file.attrs["rope_theta"], file.attrs["rope_layout"]
        for layer in range(3):
            group = file[f"layer_{layer:03d}"]
            pre, dim = group["k_pre"][...].astype(np.float64), file.attrs["head_dim"]
            angle = np.arange(TOKENS)[:, None] * theta ** (-np.arange(0, dim, 2) / dim)
            turn = np.exp(1j * angle)
            if layout == "half":
                z = (pre[..., : dim // 2] + 1j * pre[..., dim // 2 :]) * turn
                post = np.concatenate([z.real, z.imag], axis=-1)
            else:
                z = (pre[..., ::2] + 1j * pre[..., 1::2]) * turn
                post = np.stack([z.real, z.imag], axis=-1).reshape(pre.shape)
            np.testing.assert_allclose(post, group["k"][...], atol=2e-5 * np.abs(pre).max(), rtol=0)


def test_hidden_absmax_is_the_residual_stream_entering_the_layer(case: tuple) -> None:
    _, folder, path = case
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with h5py.File(path) as file, torch.no_grad():
        states = model(torch.from_numpy(file["tokens"][...]).long(), output_hidden_states=True).hidden_states
        for layer in range(3):
            expected = states[layer].abs().amax(-1).numpy()
            np.testing.assert_allclose(file[f"layer_{layer:03d}/hidden_absmax"][...], expected, rtol=1e-4)


def test_sliding_windows_are_noted(case: tuple) -> None:
    name, _, path = case
    windows = {"mistral": [16, 16, 16], "qwen2_some_layers_slide": [None, 8, 8]}.get(name, [None] * 3)
    with h5py.File(path) as file:
        assert [file[f"layer_{layer:03d}"].attrs.get("sliding_window") for layer in range(3)] == windows


def test_a_scale_of_the_models_own_goes_into_q(case: tuple) -> None:
    name, _, path = case
    with h5py.File(path) as file:
        attributes, dim = file["layer_001"].attrs, file.attrs["head_dim"]
        scale = 0.2 if name == "granite_own_scale" else dim**-0.5
        assert attributes["scale"] == pytest.approx(scale)
        assert attributes["q_multiplier"] == pytest.approx(scale * dim**0.5)


def test_storage_types_layers_and_probes(
    tiny: Callable[..., Path], text: Path, program: Callable[..., Outcome]
) -> None:
    """The same forward stored in each type: equal to the float32 one, rounded."""
    captures = {}
    for dtype in schema.DTYPES:
        out = text.with_name(f"{dtype}.h5")
        arguments = [
            "--model",
            tiny("qwen3"),
            "--text",
            text,
            "--tokens",
            40,
            "--probes",
            "strided:4",
            "--layers",
            "2,0",
        ]
        code, printed, _ = program(capture_hf, *arguments, "--dtype", dtype, "--no-k-pre", "--out", out)
        assert code == 0 and str(out) in printed
        captures[dtype] = h5py.File(out)
    full = captures["float32"]
    assert full["positions"][...].tolist() == [24, 29, 34, 39]
    assert sorted(full) == ["layer_000", "layer_002", "positions", "tokens"]
    assert "k_pre" not in full["layer_002"]
    for name in ("q", "k", "v", "w_o"):
        x = full["layer_002"][name][...]
        half, brain = captures["float16"]["layer_002"][name], captures["bfloat16"]["layer_002"][name]
        np.testing.assert_array_equal(half[...], x.astype(np.float16))
        assert brain.dtype == np.uint16 and brain.attrs["dtype"] == "bfloat16"
        np.testing.assert_array_equal(schema.decode(brain), torch.from_numpy(x).bfloat16().float().numpy())


def test_the_same_command_writes_the_same_bytes(
    tiny: Callable[..., Path], text: Path, program: Callable[..., Outcome]
) -> None:
    """kvlab's cells are keyed by the bytes of their input."""
    out, contents = text.with_name("kv.h5"), []
    for _ in range(2):
        assert program(capture_hf, "--model", tiny("llama"), "--text", text, "--tokens", 20, "--out", out)[0] == 0
        contents.append(out.read_bytes())
    assert contents[0] == contents[1]
    assert str(text.parent).encode() not in contents[0]  # no path of this machine
