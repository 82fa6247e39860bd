"""kvlab's own decoder against transformers: tiny random models of each architecture, and SmolLM2's reference values."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import capture_hf
import h5py
import numpy as np
import prepare_demo
import prepare_model
import pytest
import tiny_models
import tokenize_text
import torch
import transformers
from kvlab_capture.cli import UserError
from kvlab_capture.schema import decode

PROGRAM = Path(
    os.environ.get("KVLAB_PROGRAM", Path(__file__).resolve().parents[2] / "build/bin/kvlab")
).resolve()
TOKENS = 96

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="kvlab is not built; KVLAB_PROGRAM names it")

ROPE = {"rope_theta": 1000.0, "original_max_position_embeddings": 64}
# What is special of each kind is in tiny_models.KINDS.
MODELS: dict[str, tuple[str, dict]] = {
    "llama": ("llama", {}),
    "llama tied, one KV head": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama without GQA": ("llama", {"num_key_value_heads": 4}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0}}),
    "llama3": (
        "llama",
        {
            "rope_parameters": ROPE
            | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            "head_dim": 32,
        },
    ),
    "yarn": ("qwen3", {"rope_parameters": ROPE | {"rope_type": "yarn", "factor": 8.0}, "head_dim": 32}),
    "mistral": ("mistral", {}),  # a window of 16 tokens
    "qwen2": ("qwen2", {}),  # biases
    "qwen2 with windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),  # q/k norms
}


def kvlab(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROGRAM), *map(str, arguments)], capture_output=True, text=True, timeout=600, check=False
    )


def tokens_file(folder: Path, rows: np.ndarray) -> Path:
    path = folder / "tokens.h5"
    with h5py.File(path, "w") as file:
        file.attrs["schema"] = tokenize_text.SCHEMA
        file.create_dataset("tokens", data=rows.astype(np.int32))
    return path


def native_nll(folder: Path, model: Path, tokens: Path, dtype: str = "float32", **settings: str) -> np.ndarray:
    """Negative log-likelihood of each next token, by `kvlab run` with an unquantized float32 cache."""
    settings = {"cache_dtype": "float32"} | settings
    text = f"schema: 1\ndataset: {{source: model, path: {model}, tokens: {tokens}, dtype: {dtype}}}\nmethods: [bf16]\n"
    text += "".join(f"{key}: {value}\n" for key, value in settings.items())
    (folder / "run.yaml").write_text(text)
    done = kvlab("run", folder / "run.yaml", "--out", folder / "run.h5", "--no-progress")
    assert done.returncode == 0, done.stderr
    with h5py.File(folder / "run.h5") as file:
        (cell,) = file["cells"].values()
        assert cell.attrs["status"] == "complete", cell.attrs["reason"]
        return cell["tokens/nll"][...]


def expected_nll(
    model: Path, row: np.ndarray, dtype: torch.dtype = torch.float32, forward: torch.dtype = torch.float32
) -> np.ndarray:
    whole = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="eager").to(forward)
    with torch.inference_mode():
        logits = whole(input_ids=torch.from_numpy(row).long()[None]).logits[0].double()
    return -logits.log_softmax(-1)[:-1].gather(1, torch.from_numpy(row[1:]).long()[:, None])[:, 0].numpy()


def draw(passages: int, tokens: int = TOKENS) -> np.ndarray:
    return np.random.default_rng(4).integers(0, len(tiny_models.VOCABULARY), (passages, tokens))


@pytest.mark.parametrize("name", MODELS)
def test_logits_agree_with_transformers(tiny: Callable[..., Path], tmp_path: Path, name: str) -> None:
    kind, changes = MODELS[name]
    model, rows = tiny(kind, **changes), draw(1)
    mine = native_nll(tmp_path, model, tokens_file(tmp_path, rows))
    np.testing.assert_allclose(mine, expected_nll(model, rows[0]), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_of_16_bits_in_several_files(tiny: Callable[..., Path], tmp_path: Path, dtype: str) -> None:
    model, rows = tmp_path / "model", draw(1)
    whole = transformers.AutoModelForCausalLM.from_pretrained(tiny("llama"), dtype=getattr(torch, dtype))
    whole.save_pretrained(model, max_shard_size="20KB")
    assert len(list(model.glob("*.safetensors"))) > 1
    mine = native_nll(tmp_path, model, tokens_file(tmp_path, rows))
    np.testing.assert_allclose(mine, expected_nll(model, rows[0], getattr(torch, dtype)), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(("word", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
def test_16_bits_err_as_in_transformers(
    tiny: Callable[..., Path], tmp_path: Path, name: str, word: str, dtype: torch.dtype
) -> None:
    """Both round wherever the model's type is 16 bits, but add in other orders, so that they differ by what the type
    itself costs: each lies as far from float32 as the other, and from each other at most by both errors."""
    model, rows = tiny(name), draw(1)
    exact, theirs = (expected_nll(model, rows[0], forward, forward) for forward in (torch.float32, dtype))
    mine = native_nll(tmp_path, model, tokens_file(tmp_path, rows), word)
    error = rms(theirs - exact)
    assert rms(mine - exact) == pytest.approx(error, rel=0.5)
    assert rms(mine - theirs) < 2 * error
    assert 2**-14 < error < 0.5


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))


def test_a_capture_of_a_model_in_bfloat16(tiny: Callable[..., Path], tmp_path: Path) -> None:
    """Of the first layer, keys are those of float32 to a few roundings of 2⁻⁹: norm, matrix, RoPE."""
    tokens, found = tokens_file(tmp_path, draw(2)), {}
    for dtype in ("float32", "bfloat16"):
        out = tmp_path / f"{dtype}.h5"
        done = kvlab("capture", "--model", tiny("llama"), "--tokens", tokens, "--forward-dtype", dtype, "--out", out)
        assert done.returncode == 0, done.stderr
        with h5py.File(out) as file:
            assert file.attrs["forward_dtype"] == dtype
            found[dtype] = file["layer_000/k"][...]
    exact, rounded = found["float32"], found["bfloat16"]
    assert 2**-12 < rms(rounded - exact) / rms(exact) < 2**-6
    bits = rounded.view(np.uint32)
    assert not (bits & 0xFFFF).any()  # each is a bfloat16


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
def test_capture_agrees_with_the_python_tool(
    tiny: Callable[..., Path], tmp_path: Path, text: Path, name: str
) -> None:
    model, tokens = tiny(name), tmp_path / "tokens.h5"
    cut = ["--model", model, "--text", text, "--tokens", 64, "--passages", 2]
    assert tokenize_text.main([str(word) for word in [*cut, "--out", tokens]]) == 0
    stored = ["--layers", "0,2", "--probes", "strided:8", "--dtype", "bfloat16", "--out"]
    assert capture_hf.main([str(word) for word in [*cut, *stored, tmp_path / "theirs.h5"]]) == 0
    done = kvlab("capture", "--model", model, "--tokens", tokens, *stored, tmp_path / "mine.h5")
    assert done.returncode == 0, done.stderr
    checked = kvlab("inspect", tmp_path / "mine.h5", "--verify")
    assert checked.returncode == 0, checked.stdout
    with h5py.File(tmp_path / "mine.h5") as mine, h5py.File(tmp_path / "theirs.h5") as theirs:
        for name_ in ("tokens", "positions"):
            np.testing.assert_array_equal(mine[name_], theirs[name_])
        for attribute in ("model", "n_q_heads", "n_kv_heads", "head_dim", "rope", "text_sha256", "rope_theta"):
            assert mine.attrs[attribute] == theirs.attrs[attribute], attribute
        for layer in ("layer_000", "layer_002"):
            assert mine[layer].attrs.get("sliding_window") == theirs[layer].attrs.get("sliding_window")
            for tensor in ("q", "k", "v", "k_pre", "w_o", "hidden_absmax"):
                a, b = decode(mine[layer][tensor]), decode(theirs[layer][tensor])
                # One step of bfloat16 where rounding fell the other way.
                np.testing.assert_allclose(a, b, atol=1e-3, rtol=2**-7)


def test_an_unsupported_model_is_refused_by_name(tiny: Callable[..., Path], tmp_path: Path) -> None:
    tokens = tokens_file(tmp_path, draw(1))
    for kind, word in (("granite", "model_type"), ("gpt2", "model_type")):
        done = kvlab("capture", "--model", tiny(kind), "--tokens", tokens, "--out", tmp_path / "kv.h5")
        assert done.returncode == 2
        assert word in done.stderr and f"'{kind}'" in done.stderr
        assert not (tmp_path / "kv.h5").exists()


def test_a_token_outside_the_vocabulary_is_refused(tiny: Callable[..., Path], tmp_path: Path) -> None:
    tokens = tokens_file(tmp_path, np.full((1, 8), len(tiny_models.VOCABULARY)))
    done = kvlab("capture", "--model", tiny("llama"), "--tokens", tokens, "--out", tmp_path / "kv.h5")
    assert done.returncode == 2
    assert "outside the model's vocabulary of 62" in done.stderr


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        prepare_demo.find_gguf()
    except UserError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("prepared") / "smollm2"
    assert prepare_model.main(["--out", str(folder)]) == 0
    assert prepare_model.main(["--out", str(folder)]) == 0  # kept
    return folder


def test_smollm2_reference(shared: Path, smollm2: Path, tmp_path: Path) -> None:
    """Each of 2,047 negative log-likelihoods to 1e-3, the perplexities to 1e-4 relative; q, k, v, the attention's output
    after W_O and the largest entry of the residual stream of four layers to 1e-3."""
    from test_capture_identity import attend

    path = shared / "smollm2" / "smollm2_emma_512.h5"
    if not path.is_file():
        pytest.skip("the reference capture smollm2_emma_512.h5 is not on this machine")
    with h5py.File(path) as reference:
        tokens = tokens_file(tmp_path, reference["token_ids"][...][None])
        (tmp_path / "long").mkdir()
        longer = tokens_file(tmp_path / "long", reference["token_ids_2048"][...][None])
        nll = native_nll(tmp_path, smollm2, longer)
        np.testing.assert_allclose(nll, reference["nll_2048"][...], atol=1e-3, rtol=0)
        np.testing.assert_allclose(nll[:511], reference["nll"][...], atol=1e-3, rtol=0)
        assert abs(np.exp(nll[:511].mean()) / 36.37985 - 1) < 1e-4
        assert abs(np.exp(nll.mean()) / 27.32101 - 1) < 1e-4
        out = tmp_path / "kv.h5"
        done = kvlab("capture", "--model", smollm2, "--tokens", tokens, "--layers", "0,10,20,29", "--probes", "all",
                     "--out", out)  # fmt: skip
        assert done.returncode == 0, done.stderr
        with h5py.File(out) as mine:
            for layer in (0, 10, 20, 29):
                for tensor in "qkv":
                    theirs = reference[f"layer_{layer:02d}/{tensor}"][...]
                    np.testing.assert_allclose(mine[f"layer_{layer:03d}/{tensor}"][0], theirs, atol=1e-3, rtol=0)
                after_w_o = attend(mine[f"layer_{layer:03d}"], mine["positions"][...])[0, -8:]
                theirs = reference[f"layer_{layer:02d}/attn_out_last8"][...]
                np.testing.assert_allclose(after_w_o, theirs, atol=1e-3, rtol=0)
                largest = np.abs(reference[f"layer_{layer:02d}/hidden_in_last8"][...]).max(-1)
                absmax = mine[f"layer_{layer:03d}/hidden_absmax"][0, -8:]
                np.testing.assert_allclose(absmax, largest, atol=1e-3, rtol=0)
