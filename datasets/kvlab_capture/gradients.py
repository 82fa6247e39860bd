"""How the loss depends on keys and values: what sensitivity-weighted quantizers (KVQuant) learn from.

The loss is the mean next-token cross-entropy of a passage; its gradients are taken with respect to k and v as attention
receives them, that is as a capture stores them. Weights stay fixed and hold no gradients. All layers of a passage are held
at once, and its logits [T, vocabulary]: memory that the forward alone does without.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from .attention import listening

if TYPE_CHECKING:
    from .sink import Modules

LOSS = "mean next-token cross-entropy of a passage, nats"


def of_passage(model: Any, modules: Modules, ids: torch.Tensor) -> dict[int, dict[str, torch.Tensor]]:
    """Layer -> grad_k and grad_v, float32 [Hkv, T, d]. `model` has its output matrix; `ids` [1, T], T at least 2."""
    model.requires_grad_(False)
    with torch.enable_grad(), _from_embeddings(model), _keeping(modules) as kept:
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        torch.nn.functional.cross_entropy(logits, ids[0, 1:]).backward()
    return {layer: {"grad_k": k.grad[0], "grad_v": v.grad[0]} for layer, (k, v) in kept.items()}


@contextmanager
def _from_embeddings(model: Any) -> Iterator[None]:
    """The embeddings are where the graph begins."""
    hook = model.get_input_embeddings().register_forward_hook(lambda _module, _args, output: output.requires_grad_())
    try:
        yield
    finally:
        hook.remove()


class _Keeper:
    """Keeps the keys and values of one layer, which then keep their gradients."""

    def __init__(self, layer: int, kept: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._layer, self._kept = layer, kept

    def on_attention_function(self, _q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _options: dict[str, Any]) -> None:
        k.retain_grad()
        v.retain_grad()
        self._kept[self._layer] = (k, v)


@contextmanager
def _keeping(modules: Modules) -> Iterator[dict[int, tuple[torch.Tensor, torch.Tensor]]]:
    """What attention received in each layer, k and v [1, Hkv, T, d]."""
    kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    with listening({module: _Keeper(layer, kept) for layer, (_, module) in modules.items()}):
        yield kept
