"""Mistakes are one sentence on stderr and exit code 2, and leave no file behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import capture_hf
import h5py
import pytest
from conftest import REPOSITORY, Outcome
from kvlab_capture import schema


def refused(outcome: Outcome, *parts: str) -> None:
    """Exit code 2, nothing on stdout, and the last line of stderr says all of `parts`; lines before it are progress."""
    code, out, err = outcome
    lines = err.splitlines()
    errors = [line for line in lines if line.startswith("capture_hf.py: error: ")]
    assert (code, out, errors) == (2, "", lines[-1:])
    assert all(part in lines[-1] for part in parts), lines[-1]
    assert "Traceback" not in err


@pytest.fixture
def capture(tiny: Callable[..., Path], text: Path, program: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """capture(arguments...) on the tiny Llama model; afterwards nothing but the text is in the folder."""

    def call(*arguments: object, kind: str = "llama", **changes: object) -> Outcome:
        given = ["--model", tiny(kind, **changes), "--text", text, "--tokens", 20, "--out", text.with_name("kv.h5")]
        outcome = program(capture_hf, *given, *arguments)
        assert list(text.parent.iterdir()) == [text]
        return outcome

    return call


def test_text_too_short(capture: Callable[..., Outcome]) -> None:
    refused(capture("--tokens", 401), "letters.txt has 400 tokens, but 401 were asked for")
    refused(capture("--passages", 3, "--tokens", 200), "has 400 tokens, but 3 x 200 were asked for")
    refused(capture("--skip-tokens", 390), "has 400 tokens, but 20 after 390 skipped ones were asked for")


def test_unknown_layer(capture: Callable[..., Outcome]) -> None:
    refused(capture("--layers", "0,7"), "has layers 0 to 2, but layer 7 was asked for")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
        (["--layers", "one"], "expected all or layer numbers such as 0,10,20, got 'one'"),
        (["--layers=-1"], "expected all or layer numbers"),
        (["--probes", "strided"], "probes are strided:N, last:N or all"),
        (["--tokens", "0"], "expected a whole number of at least 1, got '0'"),
        (["--skip-tokens", "x"], "expected a whole number of at least 0, got 'x'"),
        (["--start-at", "no such text"], "does not contain 'no such text'"),
        (["--text", "missing.txt"], "cannot read the text missing.txt: No such file or directory"),
        (["--out", "missing/kv.h5"], "the output folder missing does not exist"),
        (["--model", "./missing"], "the model folder ./missing does not exist"),
        (["--gguf", "missing.gguf"], "the GGUF file missing.gguf does not exist"),
        (["--device", "abacus"], "cannot be set up on abacus"),
        (["--unknown"], "unrecognized arguments: --unknown"),
    ],
)
def test_bad_arguments(capture: Callable[..., Outcome], arguments: list[str], message: str) -> None:
    refused(capture(*arguments), message)


def test_the_text_is_not_written_over(capture: Callable[..., Outcome], text: Path) -> None:
    before = text.read_bytes()
    refused(capture("--out", text), "letters.txt would be written over, and it is no kvlab.capture/1 file")
    assert text.read_bytes() == before


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox"])
def test_other_architectures_are_refused(capture: Callable[..., Outcome], kind: str) -> None:
    refused(capture(kind=kind), "no layer has Llama-like attention, that is q_proj, k_proj, v_proj and o_proj")


def test_capped_scores_are_refused(capture: Callable[..., Outcome]) -> None:
    refused(capture(kind="gemma2"), "attention is not Llama-like: its scores are capped")


def test_attention_sinks_are_refused(capture: Callable[..., Outcome]) -> None:
    refused(
        capture(kind="gpt_oss"),
        "layer 0: attention is not Llama-like: it depends on a tensor besides q, k and v (s_aux)",
    )


def test_a_changed_attention_is_found_by_its_numbers(
    capture: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gate behind attention, as some models have it: no name gives it away."""
    from transformers.models.llama import modeling_llama

    class Gated(modeling_llama.LlamaAttention):
        def __init__(self, config: object, layer_idx: int) -> None:
            super().__init__(config, layer_idx)
            self.o_proj.register_forward_pre_hook(lambda _module, args: (args[0] * args[0].sigmoid(),))

    monkeypatch.setattr(modeling_llama, "LlamaAttention", Gated)
    refused(capture(), "layer 0: attention is not Llama-like: softmax(q k^T) v differs from the model's own result")


def test_keys_that_are_not_found(capture: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    from kvlab_capture import rope

    monkeypatch.setattr(rope, "find", lambda *_: None)
    refused(capture(), "layer 0: the keys before RoPE were not found; --no-k-pre captures the rest")


def test_weights_that_are_missing(capture: Callable[..., Outcome], tiny: Callable[..., Path]) -> None:
    """transformers would fill them with random numbers."""
    from safetensors.torch import load_file, save_file

    weights = tiny("llama", rms_norm_eps=1e-4) / "model.safetensors"
    kept = {name: x for name, x in load_file(weights).items() if name != "model.layers.1.self_attn.k_proj.weight"}
    save_file(kept, weights, metadata={"format": "pt"})
    message = "the checkpoint lacks 1 weight of the model, such as model.layers.1.self_attn.k_proj.weight"
    refused(capture(rms_norm_eps=1e-4), message)


def test_a_folder_without_a_model(program: Callable[..., Outcome], text: Path, tmp_path: Path) -> None:
    refused(
        program(capture_hf, "--model", tmp_path, "--text", text, "--tokens", 8, "--out", tmp_path / "kv.h5"),
        f"cannot load the configuration of {tmp_path.name}",
    )


def test_a_failure_halfway_keeps_the_old_file(
    program: Callable[..., Outcome], tiny: Callable[..., Path], text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = text.with_name("kv.h5")
    with h5py.File(out, "w") as file:
        file.attrs["schema"] = schema.SCHEMA
    old = out.read_bytes()
    add_passage = schema.CaptureWriter.add_passage

    def full_disk(self: schema.CaptureWriter, layer: int, *rest: object) -> None:
        if layer == 1:
            raise OSError(28, "No space left on device")
        add_passage(self, layer, *rest)

    monkeypatch.setattr(schema.CaptureWriter, "add_passage", full_disk)
    outcome = program(capture_hf, "--model", tiny("llama"), "--text", text, "--tokens", 20, "--out", out)
    refused(outcome, f"cannot write {out}: No space left on device")
    assert out.read_bytes() == old
    assert sorted(text.parent.iterdir()) == [out, text]


def test_as_a_program() -> None:
    """A real process: exit code 2 and one line, and --help does not load torch."""
    script = [sys.executable, str(REPOSITORY / "datasets" / "capture_hf.py")]
    wrong = subprocess.run([*script, "--tokens", "8"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)
    assert "the following arguments are required: --text, --out" in wrong.stderr
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", *script[1:], "--help"], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0 and "examples:" in shown.stdout
    assert "torch" not in shown.stderr


def test_the_recorded_command_names_no_folder(tmp_path: Path) -> None:
    command = [
        "capture_hf.py",
        "--out",
        f"{tmp_path}/kv.h5",
        f"--text={tmp_path}/a.txt",
        "--layers",
        "0,1",
        "--bos=never",
    ]
    expected = '["capture_hf.py", "--out", "kv.h5", "--text=a.txt", "--layers", "0,1", "--bos=never"]'
    assert capture_hf.shareable(command) == expected


def test_a_missing_text_does_not_wait_for_the_model(
    program: Callable[..., Outcome], tiny: Callable[..., Path], text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvlab_capture.loading import Model

    def load(*_: object, **__: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(Model, "_load", load)
    out = text.with_name("kv.h5")
    refused(
        program(capture_hf, "--model", tiny("llama"), "--text", "missing.txt", "--tokens", 20, "--out", out),
        "cannot read the text missing.txt",
    )


def test_sigterm_ends_without_a_traceback() -> None:
    """Wherever it hits: libraries turn the end into an error of their own."""
    script = (
        "import os, signal, sys\n"
        "from kvlab_capture import cli\n"
        "def work():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "    except SystemExit as error:\n"
        "        raise SystemError('unreported exception') from error\n"
        "cli.run(work)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY / "datasets", capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (143, "", "")
