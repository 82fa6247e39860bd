"""A text file becomes token ids [B, T], with a record of exactly which text they stand for."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .cli import UserError, counted

BOS_CHOICES = ("auto", "always", "never")


@dataclass(frozen=True)
class Cut:
    """Which part of a text is taken: B passages of T tokens each, one after the other, none shared."""

    tokens: int
    passages: int = 1
    start_at: str | None = None  # the text begins with the first occurrence of this
    skip_tokens: int = 0  # after start_at
    bos: str = "auto"  # auto: as the tokenizer does by itself


@dataclass(frozen=True)
class Passages:
    """Token ids int32 [B, T] and what identifies them."""

    tokens: np.ndarray
    file_name: str
    text: str  # exactly the text of these tokens, a BOS token not counted
    first_char: int  # where it begins in the file, in characters
    has_bos: bool

    @property
    def text_sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def tokens_sha256(self) -> str:
        """Of the ids as little-endian int32, row by row."""
        return hashlib.sha256(self.tokens.astype("<i4").tobytes()).hexdigest()


def read_text(path: Path) -> str:
    """The file's characters, line ends as they are."""
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UserError(f"cannot read the text {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: byte {error.start} does not fit") from error


def cut(path: Path, tokenizer: Any, wanted: Cut) -> Passages:
    """Tokenizes the file and takes the passages. `tokenizer` is a fast transformers tokenizer (it knows offsets)."""
    if not getattr(tokenizer, "is_fast", False):
        raise UserError("the model's tokenizer has no fast form, which is needed to know the exact text of each token")
    text = read_text(path)
    begin = _begin(text, path, wanted.start_at)
    encoded = tokenizer(text[begin:], add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]

    bos = _bos_id(tokenizer, wanted.bos)
    per_passage = wanted.tokens - (bos is not None)
    if per_passage < 1:
        raise UserError("a passage of 1 token would hold nothing but the BOS token: ask for more tokens or --bos never")
    first, last = wanted.skip_tokens, wanted.skip_tokens + wanted.passages * per_passage
    if last > len(ids):
        asked = f"{wanted.passages} x {per_passage}" if wanted.passages > 1 else f"{per_passage}"
        skipped = f" after {wanted.skip_tokens} skipped ones" if wanted.skip_tokens else ""
        where = f" from {wanted.start_at!r} on" if wanted.start_at else ""
        raise UserError(f"{path} has {counted(len(ids), 'token')}{where}, but {asked}{skipped} were asked for")

    rows = np.array(ids[first:last], dtype=np.int32).reshape(wanted.passages, per_passage)
    if bos is not None:
        rows = np.concatenate([np.full((wanted.passages, 1), bos, dtype=np.int32), rows], axis=1)
    from_char, to_char = begin + offsets[first][0], begin + offsets[last - 1][1]
    return Passages(rows, path.name, text[from_char:to_char], from_char, bos is not None)


def _begin(text: str, path: Path, start_at: str | None) -> int:
    if start_at is None:
        return 0
    begin = text.find(start_at)
    if begin < 0:
        raise UserError(f"{path} does not contain {start_at!r}")
    return begin


def _bos_id(tokenizer: Any, choice: str) -> int | None:
    """The id of the token that every passage begins with, None where there is none."""
    if choice == "never":
        return None
    if choice == "always":
        if tokenizer.bos_token_id is None:
            raise UserError("--bos always: the tokenizer has no BOS token")
        return tokenizer.bos_token_id
    ids = tokenizer("a")["input_ids"]
    return ids[0] if ids and ids[0] == tokenizer.bos_token_id else None
