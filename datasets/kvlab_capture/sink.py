"""Recorded layers become datasets and attributes of a capture."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from . import attention, rope, schema
from .attention import LayerSample
from .cli import UserError, warn

Modules = dict[int, tuple[torch.nn.Module, torch.nn.Module]]  # layer -> (decoder layer, its attention)


class LayerSink:
    """Writes each layer as it is computed, so that memory holds one layer at a time. `positions` int32 [P]."""

    def __init__(
        self, modules: Modules, positions: np.ndarray, keys_before_rope: bool, writer: schema.CaptureWriter
    ) -> None:
        self._modules, self._writer = modules, writer
        self._positions, self._keys_before_rope = torch.from_numpy(positions).long(), keys_before_rope
        self._shapes: dict[int, tuple[int, int, int]] = {}
        self._layouts: set[str | None] = set()

    def add(self, passage: int, sample: LayerSample) -> None:
        if self._keys_before_rope and sample.k_pre is None:
            raise UserError(f"layer {sample.layer}: the keys before RoPE were not found; --no-k-pre captures the rest")
        if sample.layer not in self._shapes:
            self._begin_layer(sample)
        self._writer.add_passage(sample.layer, passage, self._tensors(sample))

    def finish(self, model_name: str) -> None:
        """Root attributes that only the forward can tell; refuses if a layer never ran or layers do not match."""
        never = set(self._modules) - set(self._shapes)
        if never:
            raise UserError(f"{model_name}: layer {min(never)} was not run by the model")
        shapes = sorted(set(self._shapes.values()))
        if len(shapes) > 1:
            raise UserError(
                f"{model_name}: layers differ in heads or head size ({shapes}); capture those alike in one file"
            )
        n_q_heads, n_kv_heads, head_dim = shapes[0]
        self._writer.set_attributes({"n_q_heads": n_q_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim})
        layouts = self._layouts - {None, rope.NONE}
        if len(layouts) == 1:
            self._writer.set_attributes({"rope_layout": layouts.pop()})

    def _begin_layer(self, sample: LayerSample) -> None:
        module: Any = self._modules[sample.layer][1]
        (q_heads, tokens, dim), kv_heads = sample.q.shape, sample.k.shape[0]
        self._shapes[sample.layer] = (q_heads, kv_heads, dim)
        self._layouts.add(sample.rope_layout)
        attributes: dict[str, Any] = {"scale": sample.scale, "q_multiplier": _q_multiplier(sample)}
        if sample.rope_layout is not None:
            attributes["rope_layout"] = sample.rope_layout
        if sample.sliding_window is not None:
            attributes["sliding_window"] = sample.sliding_window
            if sample.sliding_window < tokens:
                warn(f"layer {sample.layer} reads only the last {sample.sliding_window} of {tokens} tokens")
        if module.o_proj.bias is not None:
            attributes["o_proj_bias"] = 1
        w_o = attention.output_matrix(module, sample.layer, q_heads * dim)
        self._writer.add_layer(sample.layer, attributes, w_o.numpy())

    def _tensors(self, sample: LayerSample) -> dict[str, np.ndarray]:
        """q [Hq, P, d] is stored such that scores are always q k^T / sqrt(d), as the contract has it."""
        q = sample.q[:, self._positions.to(sample.q.device)] * _q_multiplier(sample)
        tensors = {"q": q, "k": sample.k, "v": sample.v, "hidden_absmax": sample.hidden_absmax}
        if self._keys_before_rope and sample.k_pre is not None:
            tensors["k_pre"] = sample.k_pre
        return {name: x.float().cpu().numpy() for name, x in tensors.items()}


def _q_multiplier(sample: LayerSample) -> float:
    """The model's own factor on q k^T times sqrt(d): 1 but for models with a scale of their own (Granite, Gemma)."""
    multiplier = sample.scale * sample.q.shape[-1] ** 0.5
    return 1.0 if abs(multiplier - 1.0) < 1e-6 else multiplier
