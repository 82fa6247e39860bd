"""Probe positions: the tokens whose queries are stored (contract section 1)."""

from __future__ import annotations

import re

import numpy as np

from .cli import UserError

_SPEC = re.compile(r"(strided|last):([1-9][0-9]*)")


def positions(spec: str, tokens: int) -> np.ndarray:
    """Positions int32 [P], ascending, for `strided:N`, `last:N` or `all` over a passage of `tokens` tokens.

    Strided positions are floor(T/2) + floor((i+1)(T - floor(T/2))/N) - 1 for i = 0 .. N-1, equal ones once: spread over
    the last half, so that every phase of a window's flush rule is met.
    """
    if spec == "all":
        return np.arange(tokens, dtype=np.int32)
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UserError(f"probes are strided:N, last:N or all, N at least 1, not {spec!r}")
    placement, count = match[1], int(match[2])
    if placement == "last":
        return np.arange(max(0, tokens - count), tokens, dtype=np.int32)
    half = tokens // 2
    spread = {half + (i + 1) * (tokens - half) // count - 1 for i in range(count)}
    return np.array(sorted(p for p in spread if p >= 0), dtype=np.int32)
