"""Finds the key before RoPE among a layer's intermediate tensors, and how its RoPE pairs channels.

Nothing is believed by name: a candidate is the key before RoPE if rotating it with the model's own cos and sin gives the
key that attention received. The layout matters to a quantizer, since a Hadamard rotation and groups of channels see
another order of channels under another pairing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

HALF = "half"  # channel i turns with channel i + r/2, r the number of rotated channels
INTERLEAVED = "interleaved"  # channel 2i turns with channel 2i + 1
NONE = "none"  # a layer without RoPE

_TOLERANCE = 1e-4  # of the largest key entry; a wrong pairing is off by the size of the keys themselves
_POSITIONS = 32  # the last ones are compared: at position 0 every angle is 0 and every layout fits


@dataclass(frozen=True)
class PreRope:
    keys: torch.Tensor  # [Hkv, T, d]
    layout: str


def find(
    candidates: Iterable[torch.Tensor], key: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor] | None
) -> PreRope | None:
    """The first candidate that RoPE turns into `key` [Hkv, T, d]; None if there is none.

    `candidates` are outputs of k_proj or k_norm of one sequence, in any of [1, T, Hkv*d], [1, T, Hkv, d], [1, Hkv, T, d];
    `angles` are the cos and sin [1, T, r or r/2] that the attention module was given.
    """
    tail = slice(max(0, key.shape[1] - _POSITIONS), None)
    limit = _TOLERANCE * max(1.0, key.abs().max().item())
    for candidate in candidates:
        for keys in _as_heads(candidate, key.shape):
            for layout, rotated in _rotations(keys[:, tail], angles, tail):
                if (rotated - key[:, tail]).abs().max().item() <= limit:
                    return PreRope(keys, layout)
    return None


def _as_heads(x: torch.Tensor, shape: torch.Size) -> Iterator[torch.Tensor]:
    """The readings of `x` as [Hkv, T, d] that its shape allows."""
    heads, tokens, dim = shape
    if x.shape in {(1, tokens, heads * dim), (1, tokens, heads, dim)}:
        yield x.reshape(tokens, heads, dim).transpose(0, 1)
    if x.shape == (1, heads, tokens, dim):
        yield x[0]


def _rotations(
    x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor] | None, tail: slice
) -> Iterator[tuple[str, torch.Tensor]]:
    """`x` [Hkv, t, d] rotated in every way that the models use, and not at all."""
    if angles is not None:
        cos, sin = (a.reshape(-1, a.shape[-1])[tail].to(x) for a in angles)
        for half_cos, half_sin in zip(_one_a_pair(cos), _one_a_pair(sin), strict=True):
            if 2 * half_cos.shape[-1] <= x.shape[-1]:
                yield HALF, _rotate(x, half_cos, half_sin, interleaved=False)
                yield INTERLEAVED, _rotate(x, half_cos, half_sin, interleaved=True)
    yield NONE, x


def _one_a_pair(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """One angle a pair [t, r/2]: models hold them twice in a row, alternating, or once."""
    return a[:, : a.shape[-1] // 2], a[:, ::2], a


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool) -> torch.Tensor:
    """Turns the first r = 2 * cos.shape[-1] channels; the others pass (partial RoPE)."""
    pairs = cos.shape[-1]
    first = slice(0, 2 * pairs, 2) if interleaved else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if interleaved else slice(pairs, 2 * pairs)
    out = x.clone()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out
