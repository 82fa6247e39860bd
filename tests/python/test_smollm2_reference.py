"""A capture of SmolLM2-135M agrees with an independent forward (shared/smollm2) to 1e-3 in float32."""

from __future__ import annotations

from pathlib import Path

import capture_hf
import h5py
import numpy as np
import prepare_demo
import pytest
from kvlab_capture.cli import UserError

LAYERS = (0, 10, 20, 29)


@pytest.fixture(scope="module")
def reference(shared: Path) -> h5py.File:
    path = shared / "smollm2" / "smollm2_emma_512.h5"
    if not path.is_file():
        pytest.skip("the reference capture smollm2_emma_512.h5 is not on this machine")
    return h5py.File(path)


@pytest.fixture(scope="module")
def captured(reference: h5py.File, tmp_path_factory: pytest.TempPathFactory) -> h5py.File:
    try:
        gguf = prepare_demo.find_gguf()
    except UserError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("smollm2")
    (folder / "emma.txt").write_bytes(bytes(reference["text_utf8"][...]))
    arguments = ["--gguf", gguf, "--text", folder / "emma.txt", "--tokens", 512, "--probes", "all"]
    arguments += ["--layers", ",".join(map(str, LAYERS)), "--out", folder / "kv.h5"]
    assert capture_hf.main([str(argument) for argument in arguments]) == 0
    return h5py.File(folder / "kv.h5")


def test_tokens_and_text(captured: h5py.File, reference: h5py.File) -> None:
    np.testing.assert_array_equal(captured["tokens"][0], reference["token_ids"][...])
    assert captured.attrs["text_sha256"] == reference.attrs["text_sha256"]
    assert captured.attrs["bos"] == 0
    assert captured.attrs["rope_layout"] == "half"
    assert captured.attrs["rope_theta"] == 100000.0


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("layer", LAYERS)
def test_tensors(captured: h5py.File, reference: h5py.File, layer: int, name: str) -> None:
    mine, theirs = captured[f"layer_{layer:03d}/{name}"][0], reference[f"layer_{layer:02d}/{name}"][...]
    np.testing.assert_allclose(mine, theirs, atol=1e-3, rtol=0)


@pytest.mark.parametrize("layer", LAYERS)
def test_attention_output_after_w_o(captured: h5py.File, reference: h5py.File, layer: int) -> None:
    from test_capture_identity import attend

    mine = attend(captured[f"layer_{layer:03d}"], captured["positions"][...])[0, -8:]
    np.testing.assert_allclose(mine, reference[f"layer_{layer:02d}/attn_out_last8"][...], atol=1e-3, rtol=0)
