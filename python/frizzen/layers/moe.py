"""A mixture of experts: route, dispatch, experts, combine; and the experts that every token visits.

The router applies the scaling factor, ``moe.experts`` the weights of a token's experts; nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from frizzen.kernels.facts import ShapeValue
from frizzen.kernels.fp8_ops import MOE_EXPERTS_FP8
from frizzen.kernels.moe_ops import MOE_EXPERTS, MOE_ROUTE, Experts, Route
from frizzen.kernels.mxfp4_ops import MOE_EXPERTS_MXFP4
from frizzen.kernels.plan import Op
from frizzen.kernels.sparsemixer import MOE_ROUTE_SPARSEMIXER
from frizzen.layers.build import BuildContext, Norm, NormPlace
from frizzen.layers.mlp import GatedMlp
from frizzen.models.config import MoeConfig
from frizzen.parallel.streams import SHARED_EXPERTS

__all__ = ["Dispatched", "Exchange", "ExpertLoad", "LocalExchange", "MoeLayer", "SharedExperts"]

FEW_TOKENS = 1024
"""Up to so many tokens the shared experts run beside the routed ones. That saves 3 to 13 % of a layer's time
in a graph on an H200 (``benches/results/gpu/shared_experts.json``); more tokens were not measured.
"""


class Dispatched(NamedTuple):
    """The tokens whose experts are on this device."""

    x: Tensor
    """``[R, H]``."""
    weights: Tensor
    """``[R, k]`` float32."""
    ids: Tensor
    """``[R, k]`` int32, -1 for an expert that is elsewhere."""


class Exchange(Protocol):
    """Brings tokens to the devices of their experts and sums what comes back."""

    def dispatch(self, x: Tensor, weights: Tensor, ids: Tensor) -> Dispatched:
        """``x [T, H]``, ``weights`` and ``ids [T, k]`` of this device's tokens."""

    def combine(self, y: Tensor, dispatched: Dispatched) -> Tensor:
        """``y [R, H]`` of the dispatched tokens -> ``[T, H]``, a tensor that the caller may change."""


class LocalExchange:
    """All experts are on this device."""

    def dispatch(self, x: Tensor, weights: Tensor, ids: Tensor) -> Dispatched:
        """Everything stays where it is."""
        return Dispatched(x, weights, ids)

    def combine(self, y: Tensor, dispatched: Dispatched) -> Tensor:
        """Everything is where it belongs."""
        return y


class ExpertLoad:
    """Tokens per logical expert and layer since the model was loaded.

    A layer only keeps its ids; the last one of a step counts those of all layers, so that counting takes a
    few launches a step and not a few a layer. Nothing waits for the device.
    """

    def __init__(self, layers: frozenset[int], num_experts: int, device: torch.device) -> None:
        self.layers = tuple(sorted(layers))
        """The layers that have experts, in order: the rows of :meth:`read`."""
        self._last = max(layers)
        # The column behind the last expert takes the id -1.
        columns = num_experts + 1
        self._counts = torch.zeros(len(layers), columns, dtype=torch.int64, device=device)
        # Not on the device: on torch's device ``meta``, arange brings in a compiler, which takes seconds.
        self._rows = (torch.arange(len(layers)).view(-1, 1) * columns).to(device)
        self._one = torch.ones((), dtype=torch.int64, device=device)
        self._ids: list[Tensor] = []

    def add(self, layer: int, ids: Tensor) -> None:
        """``ids [T, k]`` of one layer; layers come in their order, every one in every step."""
        if layer == self.layers[0]:
            self._ids.clear()
        self._ids.append(ids)
        if layer != self._last:
            return
        columns = self._counts.shape[1]
        places = torch.stack(self._ids).flatten(1).remainder(columns) + self._rows
        self._counts.view(-1).scatter_add_(0, places.flatten(), self._one.expand(places.numel()))
        self._ids.clear()

    @torch.inference_mode()
    def reset(self) -> None:
        """Begins anew."""
        self._counts.zero_()

    @torch.inference_mode()
    def read(self) -> Tensor:
        """``[layers, experts]`` int64 on the CPU; waits for the steps that were submitted before."""
        return self._counts[:, :-1].cpu()


class SharedExperts:
    """The experts that every token visits, as one network; with a gate, a sigmoid per token weighs them."""

    def __init__(self, context: BuildContext, *, gate: bool) -> None:
        self._mlp = GatedMlp(context, bias=False, name="shared", site="shared_")
        self._gate = context.linear("shared_gate", "shared_gate", bias=False) if gate else None

    def forward(self, x: Tensor) -> Tensor:
        """``[T, H]`` -> ``[T, H]``."""
        y = self._mlp.forward(x)
        return y if self._gate is None else y.mul_(torch.sigmoid(self._gate(x)))


NormedRoute = Callable[[Tensor, Tensor | None, Tensor | None], tuple[Tensor, Tensor, Tensor]]
"""``(x [T, H], residual [T, H] | None, valid)`` to the norm of their sum ``[T, H]``, weights and ids;
``residual += x`` in place."""


@dataclass(frozen=True, slots=True)
class _NormedRouter:
    """A norm, then a router: two launches."""

    norm: Norm
    route: Route

    def __call__(
        self, x: Tensor, residual: Tensor | None, valid: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        normed = self.norm(x, residual)
        return (normed, *self.route(normed, valid))


class MoeLayer:
    """The feed-forward half of a layer whose network is a mixture of experts: norm, router, experts."""

    def __init__(
        self,
        context: BuildContext,
        config: MoeConfig,
        norm: NormPlace,
        load: ExpertLoad,
        exchange: Exchange | None = None,
    ) -> None:
        if context.layer is None:
            raise ValueError("a mixture of experts stands in a layer")
        self._layer = context.layer
        self._load = load
        self._exchange = exchange or LocalExchange()
        self.route = _router(context, config, norm)
        self._experts = _experts(context, config)
        self.shared = SharedExperts(context, gate=config.shared_gate) if config.shared_size else None
        self._streams = context.streams

    def kernels(self) -> tuple[object, object, object] | None:
        """None: nothing runs such a layer in one call."""
        return None

    def forward(self, x: Tensor, residual: Tensor | None, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """See ``decoder.FeedForward``; padding goes to no expert."""
        stream = x if residual is None else residual
        x, weights, ids = self.route(x, residual, valid)
        self._load.add(self._layer, ids)
        if self.shared is None:
            return self._routed(x, weights, ids), stream
        if len(x) > FEW_TOKENS:
            return self._routed(x, weights, ids).add_(self.shared.forward(x)), stream
        with self._streams.beside(SHARED_EXPERTS) as run:
            shared = run(partial(self.shared.forward, x))
            out = self._routed(x, weights, ids)
        return out.add_(shared), stream

    def _routed(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        dispatched = self._exchange.dispatch(x, weights, ids)
        return self._exchange.combine(self._experts(*dispatched), dispatched)


def _router(context: BuildContext, config: MoeConfig, place: NormPlace) -> NormedRoute:
    weight = context.take("router.weight", dtype=torch.float32 if config.router_float32 else None)
    experts, hidden = weight.shape
    if config.jitter is not None:
        mixer = context.plan.resolve(
            MOE_ROUTE_SPARSEMIXER,
            context.dtype,
            site="router",
            layer=context.layer,
            hidden=hidden,
            experts=experts,
            jitter=config.jitter,
        )
        return _NormedRouter(context.norm_before(place, mixer)[0], mixer.prepare(weight))
    kernel = context.plan.resolve(
        MOE_ROUTE,
        context.dtype,
        site="router",
        layer=context.layer,
        hidden=hidden,
        experts=experts,
        top_k=config.top_k,
        scoring=config.scoring,
        renormalize=config.renormalize,
        scaling=config.scaling,
        groups=config.groups,
        top_groups=config.top_groups,
        bias=config.router_bias,
        correction=config.correction,
    )
    bias = context.take("router.bias") if config.router_bias else None
    correction = context.take("router.correction", dtype=torch.float32) if config.correction else None
    norm, fold = context.norm_before(place, kernel)
    if fold is not None:
        fused: NormedRoute = fold(weight, bias, correction)
        return fused
    return _NormedRouter(norm, kernel.prepare(weight, bias, correction))


def _experts(context: BuildContext, config: MoeConfig) -> Experts:
    """The weights are read straight into their stacks, whose rows are the parameters one below the other."""
    count = config.num_experts

    def names(kind: str, *parts: str) -> tuple[str, ...]:
        return tuple(f"experts.{expert}.{part}.{kind}" for expert in range(count) for part in parts)

    stacks = ("gate", "up"), ("down",)
    op, weights, stored_facts = _as_stored(context, [names("weight", *parts) for parts in stacks], count)
    biases: list[Tensor | None] = [None, None]
    if config.expert_bias:
        biases = [_by_expert(context.take(*names("bias", *parts)), count) for parts in stacks]
    kernel = context.plan.resolve(
        op,
        context.dtype,
        site="experts",
        layer=context.layer,
        intermediate=config.intermediate_size,
        experts=count,
        top_k=config.top_k,
        bias=config.expert_bias,
        clamp=config.clamp,
        alpha=config.alpha,
        beta=config.beta,
        **stored_facts,
    )
    experts: Experts = kernel.prepare(*weights, *biases)
    return experts


def _as_stored(
    context: BuildContext, stacks: list[tuple[str, ...]], count: int
) -> tuple[Op[Any], list[Any], dict[str, ShapeValue]]:
    """The op that computes with the weights as they are kept, the weights by expert, and their own facts.

    What a stack is stored in is asked for before any is taken: memory is taken, and counted, once.
    """
    found = [block for stack in stacks if (block := context.fp8_block(*stack)) is not None]
    if len(found) == len(stacks) and len({columns for _, columns in found}) == 1:
        block = found[0] if len(set(found)) == 1 else (1, found[0][1])
        in_fp8 = [context.take_fp8(*stack, block=block).unflatten(count) for stack in stacks]
        facts: dict[str, ShapeValue] = {"block_rows": block[0], "block_columns": block[1]}
        return MOE_EXPERTS_FP8, in_fp8, {"hidden": in_fp8[1].data.shape[1], **facts}
    if all(context.in_mxfp4(*stack) for stack in stacks):
        packed = [context.take_mxfp4(*stack).unflatten(count) for stack in stacks]
        return MOE_EXPERTS_MXFP4, packed, {"hidden": packed[1].data.shape[1]}
    plain = [_by_expert(context.take(*stack), count) for stack in stacks]
    return MOE_EXPERTS, plain, {"hidden": plain[1].shape[1]}


def _by_expert(tensor: Tensor, count: int) -> Tensor:
    return torch.unflatten(tensor, 0, (count, -1))
