#!/usr/bin/env python3
"""Captures real attention tensors from a Hugging Face model into a kvlab.capture/1 file.

Stored are, for each layer asked for, the queries after RoPE at the probe positions, keys and values of all tokens, keys
before RoPE (after any k-norm), W_O, and the largest entry of the hidden state of each token. The model may be any
decoder-only one with Llama-like attention: q_proj, k_proj, v_proj and o_proj, GQA or MQA or neither, with or without
biases, q/k norms and sliding windows. The forward runs in float32 whatever --dtype is; --dtype is how tensors are stored.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from kvlab_capture import cli
from kvlab_capture.passages import BOS_CHOICES, Cut
from kvlab_capture.probes import positions
from kvlab_capture.schema import DTYPES

EXAMPLES = """
examples:
  a model of the hub, four layers, 64 probes over the last half of 4,096 tokens:
    python datasets/capture_hf.py --model Qwen/Qwen3-0.6B --text book.txt --tokens 4096 \\
        --probes strided:64 --layers 0,9,18,27 --dtype bfloat16 --out kv.h5
  a calibration set (queries of all positions) from a model's folder, another part of the same text:
    python datasets/capture_hf.py --model ./my-model --text book.txt --skip-tokens 4096 --tokens 4096 \\
        --probes all --layers all --dtype bfloat16 --no-k-pre --out calibration.h5
  a GGUF file, dequantized to float32, eight passages of 512 tokens:
    python datasets/capture_hf.py --gguf model.Q4_1.gguf --text book.txt --tokens 512 --passages 8 \\
        --layers all --out kv.h5
"""


def layer_list(text: str) -> tuple[int, ...] | None:
    """An argparse type: `all` (None) or layer numbers, ascending and each once."""
    if text == "all":
        return None
    try:
        layers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        layers = [-1]
    if layers[0] < 0:
        raise argparse.ArgumentTypeError(f"expected all or layer numbers such as 0,10,20, got {text!r}")
    return tuple(layers)


def probe_spec(text: str) -> str:
    """An argparse type: refuses a wrong form at once."""
    try:
        positions(text, 1)
    except cli.UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def build_parser() -> argparse.ArgumentParser:
    parser = cli.OneLineParser(
        prog="capture_hf.py", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    model = parser.add_argument_group("the model")
    model.add_argument(
        "--model", metavar="NAME_OR_FOLDER", help="a Hugging Face hub name, or a folder with config.json and weights"
    )
    model.add_argument(
        "--gguf", metavar="FILE", help="a GGUF file, by itself or inside --model; its weights are dequantized"
    )
    model.add_argument("--device", default="cpu", help="where the forward runs, such as cuda:0 (default: cpu)")

    text = parser.add_argument_group("the text")
    text.add_argument("--text", metavar="FILE", type=Path, required=True, help="a UTF-8 text file")
    text.add_argument("--tokens", metavar="T", type=cli.positive, required=True, help="tokens of a passage")
    text.add_argument(
        "--passages", metavar="B", type=cli.positive, default=1, help="passages, one after the other (default: 1)"
    )
    text.add_argument("--start-at", metavar="STRING", help="begin at the first occurrence of this string")
    text.add_argument(
        "--skip-tokens",
        "--offset",
        metavar="N",
        type=cli.not_negative,
        default=0,
        help="skip N tokens first (default: 0)",
    )
    text.add_argument(
        "--bos",
        choices=BOS_CHOICES,
        default="auto",
        help="begin each passage with the BOS token, one of the T (default: auto, as the tokenizer does by itself)",
    )

    stored = parser.add_argument_group("what is stored")
    stored.add_argument(
        "--probes",
        metavar="SPEC",
        type=probe_spec,
        default="strided:64",
        help="positions whose queries are stored: strided:N over the last half, last:N or all (default: strided:64)",
    )
    stored.add_argument(
        "--layers", metavar="LIST", type=layer_list, default="all", help="such as 0,10,20,29, or all (default: all)"
    )
    stored.add_argument("--dtype", choices=DTYPES, default="float32", help="how tensors are stored (default: float32)")
    stored.add_argument("--no-k-pre", action="store_true", help="leave out the keys before RoPE")
    stored.add_argument(
        "--gradients",
        action="store_true",
        help="store the loss gradients of keys and values, which KVQuant weighs by: a second pass, forward and backward",
    )
    stored.add_argument(
        "--out", metavar="FILE", type=Path, required=True, help="the HDF5 file to write; replaced only when complete"
    )
    return parser


def shareable(argv: list[str]) -> str:
    """The command as JSON, without the folders of paths: captures are passed on, paths of a machine are not."""

    def without_folder(arg: str) -> str:
        option, equals, value = arg.partition("=") if arg.startswith("--") else ("", "", arg)
        return option + equals + (Path(value).name if os.path.isabs(value) or Path(value).exists() else value)

    return json.dumps([without_folder(arg) for arg in argv])


def main(argv: list[str]) -> int:
    options = build_parser().parse_args(argv)
    from kvlab_capture.atomic import require_output
    from kvlab_capture.schema import SCHEMA

    require_output(options.out, SCHEMA)

    from kvlab_capture.capture import Request, capture
    from kvlab_capture.loading import Model, source

    cut = Cut(options.tokens, options.passages, options.start_at, options.skip_tokens, options.bos)
    request = Request(cut, options.probes, options.layers, options.dtype, not options.no_k_pre, options.gradients)
    started = time.monotonic()
    model = Model(source(options.model, options.gguf), options.device)
    capture(model, options.text, request, options.out, {"argv": shareable(["capture_hf.py", *argv])})
    print(f"{options.out}  {options.out.stat().st_size:,} bytes  {time.monotonic() - started:.1f} s")
    return cli.EXIT_OK


if __name__ == "__main__":
    cli.run(lambda: main(sys.argv[1:]))
