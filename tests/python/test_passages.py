"""Which tokens are taken from a text, and that they are named exactly."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import tiny_models
from kvlab_capture.cli import UserError
from kvlab_capture.passages import Cut, cut

PLAIN = tiny_models.tokenizer(adds_bos=False)
WITH_BOS = tiny_models.tokenizer(adds_bos=True)


def test_passages_follow_each_other(text: Path) -> None:
    letters = text.read_text()
    taken = cut(text, PLAIN, Cut(tokens=50, passages=3, skip_tokens=10))
    expected = [tiny_models.VOCABULARY.index(letter) for letter in letters[10:160]]
    assert taken.tokens.shape == (3, 50)
    assert taken.tokens.reshape(-1).tolist() == expected
    assert taken.text == letters[10:160]
    assert taken.first_char == 10
    assert taken.text_sha256 == hashlib.sha256(taken.text.encode()).hexdigest()


def test_start_at_counts_from_the_string(text: Path) -> None:
    letters = text.read_text()
    taken = cut(text, PLAIN, Cut(tokens=5, start_at=letters[100:110], skip_tokens=1))
    assert taken.text == letters[101:106]
    assert taken.first_char == 101


def test_bos_is_the_tokenizers_habit_unless_said_otherwise(text: Path) -> None:
    def first(tokenizer: object, bos: str) -> int:
        taken = cut(text, tokenizer, Cut(tokens=4, passages=2, bos=bos))
        assert taken.has_bos == (taken.tokens[0, 0] == 1) == (taken.tokens[1, 0] == 1)
        return int(taken.tokens[0, 0])

    assert first(WITH_BOS, "auto") == first(WITH_BOS, "always") == first(PLAIN, "always") == 1
    assert first(PLAIN, "auto") == first(WITH_BOS, "never") == first(PLAIN, "never") != 1


def test_a_bos_token_is_no_text(text: Path) -> None:
    taken = cut(text, WITH_BOS, Cut(tokens=4, passages=2))
    assert taken.text == text.read_text()[:6]
    with pytest.raises(UserError, match="nothing but the BOS token"):
        cut(text, WITH_BOS, Cut(tokens=1))


def test_a_text_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"w1 caf\xe9 w2")
    with pytest.raises(UserError, match=r"latin\.txt is not UTF-8 text: byte 6"):
        cut(path, PLAIN, Cut(tokens=2))
