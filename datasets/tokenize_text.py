#!/usr/bin/env python3
"""Writes passages of a text as kvlab.tokens/1, tokenized by a model's own tokenizer: what `source: model` is run on."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import h5py
from kvlab_capture import cli
from kvlab_capture.atomic import require_output, whole_file
from kvlab_capture.loading import Model, source
from kvlab_capture.passages import BOS_CHOICES, Cut, Passages, cut

SCHEMA = "kvlab.tokens/1"
CREATED_BY = "kvlab tokenize_text.py 1"

EXAMPLES = """
examples:
  python datasets/tokenize_text.py --model models/smollm2 --text datasets/cache/texts/austen_persuasion.txt \\
      --start-at 'Sir Walter Elliot' --tokens 2048 --passages 4 --out datasets/smollm2/eval.h5
"""


def write(out: Path, taken: Passages, tokenizer: str) -> None:
    """`out` appears only when all of it is there."""
    with whole_file(out) as temporary, h5py.File(temporary, "w") as file:
        file.attrs["schema"] = SCHEMA
        file.attrs["tokenizer"] = tokenizer
        file.attrs["text_sha256"] = taken.text_sha256
        file.attrs["text_file"] = taken.file_name
        file.attrs["text_first_char"] = taken.first_char
        file.attrs["bos"] = int(taken.has_bos)
        file.attrs["created_by"] = CREATED_BY
        file.create_dataset("tokens", data=taken.tokens)


def main(argv: list[str]) -> int:
    parser = cli.OneLineParser(
        prog="tokenize_text.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", metavar="NAME_OR_FOLDER", help="whose tokenizer: a hub name or a folder")
    parser.add_argument("--gguf", metavar="FILE", help="a GGUF file whose tokenizer is taken")
    parser.add_argument("--text", metavar="FILE", type=Path, required=True, help="a UTF-8 text file")
    parser.add_argument("--tokens", metavar="T", type=cli.positive, required=True, help="tokens of a passage")
    parser.add_argument("--passages", metavar="B", type=cli.positive, default=1, help="one after the other (default: 1)")
    parser.add_argument("--start-at", metavar="STRING", help="begin at the first occurrence of this string")
    parser.add_argument("--skip-tokens", metavar="N", type=cli.not_negative, default=0, help="skip N tokens first")
    parser.add_argument("--bos", choices=BOS_CHOICES, default="auto", help="a BOS token first (default: as the tokenizer)")
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="the HDF5 file to write")
    options = parser.parse_args(argv)
    require_output(options.out, SCHEMA)
    model = Model(source(options.model, options.gguf))
    wanted = Cut(options.tokens, options.passages, options.start_at, options.skip_tokens, options.bos)
    taken = cut(options.text, model.tokenizer, wanted)
    write(options.out, taken, model.name)
    print(f"{options.out}  {taken.tokens.shape[0]} x {taken.tokens.shape[1]} tokens of {taken.file_name}")
    return cli.EXIT_OK


if __name__ == "__main__":
    cli.run(lambda: main(sys.argv[1:]))
