"""Records what Llama-like attention reads, and proves that it is Llama-like.

q, k and v are taken where the model hands them to its attention function: after RoPE, after q/k norms, before repetition
of KV heads. For each layer the recorder then recomputes softmax(s q k^T) v from what it took, for a few positions, and
compares with what the model feeds to o_proj. A gate or a mask that is neither causal nor a sliding window therefore ends in
a refusal, not in a file whose numbers mean something else; so do a score cap and tensors that other attention functions
take besides q, k and v (sinks, position biases).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from . import rope
from .cli import UserError

IMPLEMENTATION = "kvlab_capture"
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")

_RECORDER = "_kvlab_recorder"
_HARMLESS_TENSORS = {"position_ids", "cache_position"}  # attention functions get them and do not use them
_CHECKED_POSITIONS = 8
_CHECK_TOLERANCE = 1e-3  # relative; float32 rounding gives 1e-6, another kind of attention 1e-1 and more


@dataclass
class LayerSample:
    """One layer of one passage, float32: q [Hq, T, d], k, v, k_pre [Hkv, T, d], hidden_absmax [T]."""

    layer: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    k_pre: torch.Tensor | None
    hidden_absmax: torch.Tensor
    scale: float  # the model multiplies q k^T by this
    sliding_window: int | None  # a query at p reads keys p - sliding_window + 1 .. p
    rope_layout: str | None  # None: keys before RoPE were not found


def find_attention(decoder: torch.nn.Module, model_name: str) -> dict[int, tuple[torch.nn.Module, torch.nn.Module]]:
    """Layer index -> (decoder layer, its attention module), for all Llama-like attention in the decoder."""
    found: dict[int, tuple[torch.nn.Module, torch.nn.Module]] = {}
    for name, module in decoder.named_modules():
        if not all(isinstance(getattr(module, part, None), torch.nn.Module) for part in PROJECTIONS):
            continue
        layer = getattr(module, "layer_idx", None)
        if layer is None or layer in found:
            raise UserError(f"{model_name}: the attention modules do not tell their layer (at {name})")
        found[layer] = (decoder.get_submodule(name.rpartition(".")[0]), module)
    if not found:
        raise UserError(
            f"{model_name} ({type(decoder).__name__}): no layer has Llama-like attention, "
            "that is q_proj, k_proj, v_proj and o_proj"
        )
    return found


def output_matrix(attention: Any, layer: int, width: int) -> torch.Tensor:
    """W_O, float32 [D, Hq*d]. `width` is Hq*d."""
    weight = attention.o_proj.weight
    if not weight.is_floating_point() or weight.ndim != 2 or weight.shape[1] != width:
        raise UserError(
            f"layer {layer}: o_proj.weight is no plain matrix [D, {width}]: the weights seem quantized, use unpacked ones"
        )
    return weight.detach().float().cpu()


@contextmanager
def recording(
    layers: dict[int, tuple[torch.nn.Module, torch.nn.Module]], sink: Callable[[LayerSample], None]
) -> Iterator[None]:
    """While active, each forward of a batch of one calls `sink` once a layer, in the order of the layers.

    The model must have been set to `IMPLEMENTATION`. Only one layer's tensors are held at a time. The forward ends at the
    last of the layers: the body's statement that runs the model gives no result.
    """
    last = max(layers)

    def sink_until_last(sample: LayerSample) -> None:
        sink(sample)
        if sample.layer == last:
            raise _AllRecorded

    with suppress(_AllRecorded), ExitStack() as stack:
        for layer, (block, attention) in layers.items():
            stack.enter_context(_LayerRecorder(layer, block, attention, sink_until_last))
        yield


@contextmanager
def listening(listeners: Mapping[torch.nn.Module, Any]) -> Iterator[None]:
    """While active, `on_attention_function` of an attention module's listener gets what the module hands over."""
    for module, listener in listeners.items():
        setattr(module, _RECORDER, listener)
    try:
        yield
    finally:
        for module in listeners:
            delattr(module, _RECORDER)


class _AllRecorded(Exception):  # noqa: N818 - no error: the way out of a forward that has given all that was wanted
    pass


class _LayerRecorder:
    """The hooks of one layer, called in this order: block, attention, k_proj, k_norm, attention function, o_proj."""

    def __init__(self, layer: int, block: torch.nn.Module, attention: Any, sink: Callable[[LayerSample], None]) -> None:
        self._layer, self._block, self._attention, self._sink = layer, block, attention, sink
        self._forget()

    def _forget(self) -> None:
        self._hidden_absmax = torch.empty(0)
        self._angles: tuple[torch.Tensor, torch.Tensor] | None = None
        self._keys_before: list[torch.Tensor] = []
        self._sample: LayerSample | None = None

    def __enter__(self) -> None:
        self._hooks = [
            self._block.register_forward_pre_hook(self._on_block, with_kwargs=True),
            self._attention.register_forward_pre_hook(self._on_attention, with_kwargs=True),
            self._attention.o_proj.register_forward_pre_hook(self._on_o_proj),
        ]
        for name in ("k_proj", "k_norm"):
            module = getattr(self._attention, name, None)
            if isinstance(module, torch.nn.Module):
                self._hooks.append(module.register_forward_hook(self._on_keys))
        setattr(self._attention, _RECORDER, self)

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        delattr(self._attention, _RECORDER)
        self._forget()

    def _on_block(self, _module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        self._hidden_absmax = hidden[0].abs().amax(-1)

    def _on_attention(self, _module: torch.nn.Module, _args: tuple, kwargs: dict[str, Any]) -> None:
        self._angles = kwargs.get("position_embeddings")

    def _on_keys(self, _module: torch.nn.Module, _args: tuple, output: torch.Tensor) -> None:
        self._keys_before.insert(0, output)  # the latest first: with a norm, its output is the key before RoPE

    def on_attention_function(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> None:
        """q [1, Hq, T, d], k and v [1, Hkv, T, d] and the function's keyword arguments, as the model hands them over."""
        dim, scale = q.shape[-1], options.get("scaling")
        if options.get("softcap") is not None:
            self._refuse(f"its scores are capped (softcap {options['softcap']})")
        for name, option in options.items():
            if isinstance(option, torch.Tensor) and name not in _HARMLESS_TENSORS:
                self._refuse(f"it depends on a tensor besides q, k and v ({name})")
        if k.shape[-1] != dim or v.shape[-1] != dim:
            self._refuse(f"queries have {dim} channels a head, keys {k.shape[-1]}, values {v.shape[-1]}")
        pre = rope.find(self._keys_before, k[0], self._angles)
        self._sample = LayerSample(
            layer=self._layer,
            q=q[0],
            k=k[0],
            v=v[0],
            k_pre=None if pre is None else pre.keys,
            hidden_absmax=self._hidden_absmax,
            scale=dim**-0.5 if scale is None else float(scale),
            sliding_window=options.get("sliding_window"),
            rope_layout=None if pre is None else pre.layout,
        )

    def _on_o_proj(self, _module: torch.nn.Module, args: tuple) -> None:
        sample = self._sample
        if sample is None:
            self._refuse("it computes attention by itself, not through transformers' attention interface")
        error = _relative_difference(sample, args[0])
        if not error <= _CHECK_TOLERANCE:
            self._refuse(f"softmax(q k^T) v differs from the model's own result by {error:.1e}")
        self._forget()
        self._sink(sample)

    def _refuse(self, reason: str) -> NoReturn:
        raise UserError(f"layer {self._layer}: attention is not Llama-like: {reason}")


def _relative_difference(sample: LayerSample, output: torch.Tensor) -> float:
    """Of the attention output recomputed at the last positions from the model's own, [1, T, Hq*d] before o_proj."""
    q_heads, tokens, dim = sample.q.shape
    own = output.reshape(tokens, -1)
    if own.shape[1] != q_heads * dim:
        return float("inf")
    first = max(0, tokens - _CHECKED_POSITIONS)
    q = sample.q[:, first:].unflatten(0, (sample.k.shape[0], -1))  # [Hkv, Hq/Hkv, p, d]
    scores = torch.einsum("hgpd,htd->hgpt", q, sample.k) * sample.scale
    p, t = torch.arange(first, tokens, device=q.device)[:, None], torch.arange(tokens, device=q.device)
    hidden = t > p
    if sample.sliding_window is not None:
        hidden |= t <= p - sample.sliding_window
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    again = torch.einsum("hgpt,htd->phgd", weights, sample.v).reshape(tokens - first, -1)
    own = own[first:]
    return ((again - own).norm() / own.norm().clamp_min(torch.finfo(own.dtype).tiny)).item()


def _attention_function(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    recorder = getattr(module, _RECORDER, None)
    if recorder is not None:
        recorder.on_attention_function(query, key, value, kwargs)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)


# SDPA with its own masks: no [T, T] scores, and no mask at all where attention is plainly causal.
AttentionInterface.register(IMPLEMENTATION, _attention_function)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
