"""Lets transformers read a GGUF file's header once.

transformers 5 parses it anew for the configuration, the tokenizer and the weights, and builds the table of tensor names
once for every module: SmolLM2-135M loads in 39 seconds, with this in 16. Both answers depend on their arguments only.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager


class HeaderCache:
    """While `active`, `gguf`'s reader and name table are remembered; `clear` forgets them (they map the file)."""

    def __init__(self) -> None:
        import gguf

        self._module = gguf
        self._cached = {
            name: functools.lru_cache(maxsize=2)(getattr(gguf, name)) for name in ("GGUFReader", "get_tensor_name_map")
        }

    @contextmanager
    def active(self) -> Iterator[None]:
        originals = {name: getattr(self._module, name) for name in self._cached}
        try:
            for name, cached in self._cached.items():
                setattr(self._module, name, cached)
            yield
        finally:
            for name, original in originals.items():
                setattr(self._module, name, original)

    def clear(self) -> None:
        for cached in self._cached.values():
            cached.cache_clear()
