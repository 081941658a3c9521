"""A causal language model as the worker sees it, and what a family of them declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from frizzen.kernels.native import Decoder, fuse
from frizzen.kernels.ops import StepKernel
from frizzen.layers.build import BuildContext, Map, Norm
from frizzen.layers.decoder import DecoderLayer
from frizzen.layers.moe import ExpertLoad
from frizzen.layers.rotary import Rotary
from frizzen.loading.checkpoint import Parameter
from frizzen.loading.gguf import GgufMetadata
from frizzen.loading.hf_config import HfConfig
from frizzen.models.config import DecoderConfig
from frizzen.parallel.streams import NO_STREAMS, Streams
from frizzen.step import StepContext

__all__ = ["CausalLM", "Family"]


class CausalLM:
    """Embedding, decoder layers, final norm, output head."""

    def __init__(
        self,
        config: DecoderConfig,
        *,
        embed: Map,
        rotary: Rotary,
        layers: Sequence[DecoderLayer],
        norm: Norm,
        lm_head: Map,
        dtype: torch.dtype,
        device: torch.device,
        block_size: int,
        expert_load: ExpertLoad | None = None,
        streams: Streams = NO_STREAMS,
    ) -> None:
        self.config = config
        self.streams = streams
        """Of its device: whoever computes on it takes streams from here."""
        self.expert_load = expert_load
        """Tokens per expert so far; None without a mixture of experts."""
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        self._embed = embed
        self._rotary = rotary
        self._layers = tuple(layers)
        self._norm = norm
        self._lm_head = lm_head
        # Layers with equal facts share a kernel, and so its preparation of a step.
        self._kernels: tuple[StepKernel, ...] = tuple(
            {id(layer.attention.kernel): layer.attention.kernel for layer in layers}.values()
        )
        # All layers as one call, where one can run them; made when the cache is.
        self._decoder: Decoder | None = None
        order = {id(kernel): index for index, kernel in enumerate(self._kernels)}
        self._schedule = tuple((layer, order[id(layer.attention.kernel)]) for layer in self._layers)

    @property
    def max_model_len(self) -> int:
        """Longest context, in tokens, that it can serve."""
        return self.config.max_model_len

    def kv_bytes_per_token(self) -> int:
        """KV cache bytes per token, all layers."""
        return sum(layer.attention.kernel.bytes_per_token() for layer in self._layers)

    def of_layers(self, layers: Sequence[int]) -> CausalLM:
        """The same model with only some of its layers, which are shared: to warm up, its output is void."""
        few = copy(self)
        few._schedule = tuple(self._schedule[layer] for layer in layers)
        few._decoder = None
        return few

    @property
    def capturable(self) -> bool:
        """Whether a step is a fixed sequence of launches, by what its attention kernels say."""
        return all(getattr(kernel, "capturable", False) for kernel in self._kernels)

    @torch.inference_mode()
    def allocate_kv(self, num_blocks: int, block_size: int) -> None:
        """Makes an empty KV cache of ``num_blocks`` blocks, the null block included.

        Raises:
            ValueError: ``block_size`` is not the one that the attention kernels were chosen for.
        """
        if block_size != self.block_size:
            raise ValueError(f"block_size is {block_size}, but the model was loaded for {self.block_size}")
        for layer in self._layers:
            layer.attention.allocate_kv(num_blocks)
        kernels = [found for layer in self._layers if (found := layer.kernels()) is not None]
        self._decoder = fuse(kernels, self._norm) if len(kernels) == len(self._layers) else None

    @torch.inference_mode()
    def forward(self, input_ids: Tensor, step: StepContext) -> Tensor:
        """Computes a step and writes its keys and values to the cache.

        Args:
            input_ids: ``[T]`` int64, each at least 0 and below the vocabulary size.
            step: where the tokens stand.

        Returns:
            ``[T, H]`` hidden states after the final norm.
        """
        x, residual = self._embed(input_ids), None
        cos, sin = self._rotary.angles(step.positions)
        states = [kernel.begin(step) for kernel in self._kernels]
        if self._decoder is not None:
            return self._decoder(x, cos, sin, step.slots, states[0])
        for layer, kernel in self._schedule:
            x, residual = layer.forward(x, residual, cos, sin, step, states[kernel])
        return self._norm(x, residual)

    @torch.inference_mode()
    def forward_tapped(
        self, input_ids: Tensor, step: StepContext, layers: Sequence[int]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """As :meth:`forward`, and the residual stream as it enters some layers, for drafters.

        Layer by layer: whatever runs them as one call steps aside.

        Args:
            input_ids: ``[T]`` int64.
            step: where the tokens stand.
            layers: which, each from 0 to the number of layers, which stands for what leaves the last one.

        Returns:
            ``[T, H]`` hidden states after the final norm, and ``[T, H]`` for each of ``layers`` in order.
        """
        x, residual = self._embed(input_ids), None
        cos, sin = self._rotary.angles(step.positions)
        states = [kernel.begin(step) for kernel in self._kernels]
        tapped: dict[int, Tensor] = {}
        for index, (layer, kernel) in enumerate(self._schedule):
            if index in layers:
                tapped[index] = x.clone() if residual is None else residual + x
            x, residual = layer.forward(x, residual, cos, sin, step, states[kernel])
        if len(self._layers) in layers:
            tapped[len(self._layers)] = x.clone() if residual is None else residual + x
        return self._norm(x, residual), tuple(tapped[layer] for layer in layers)

    @torch.inference_mode()
    def embed(self, input_ids: Tensor) -> Tensor:
        """Token ids int64 ``[T]`` -> ``[T, H]``, a fresh tensor: what enters the first layer."""
        return self._embed(input_ids)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """``hidden [S, H]`` -> ``[S, V]`` float32, a fresh tensor."""
        return self._lm_head(hidden)


@dataclass(frozen=True, slots=True)
class Family:
    """Models that share their structure and the names in their checkpoints."""

    architectures: tuple[str, ...]
    """As in ``config.json``."""
    gguf_architectures: tuple[str, ...]
    """As in ``general.architecture``."""
    from_hf: Callable[[HfConfig], DecoderConfig]
    from_gguf: Callable[[GgufMetadata, bool], DecoderConfig]
    """The second argument says whether the file has no output head of its own."""
    parameters: Callable[[DecoderConfig], list[Parameter]]
    build: Callable[[DecoderConfig, BuildContext], CausalLM]
    ignored: tuple[str, ...] = ()
    """Patterns of checkpoint tensors that mean nothing to the computation."""
