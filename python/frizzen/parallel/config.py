"""How a model is spread over devices: frozen, checked when made, changed only by ``dataclasses.replace``.

Because a value is checked when it is made, there is no half-changed one: whoever derives a configuration
states all its differences in one ``replace``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from frizzen.errors import ConfigError

__all__ = ["EplbConfig", "ParallelConfig", "for_draft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EplbConfig:
    """Expert parallel load balancing: spare physical experts, and how often they are dealt out anew."""

    num_redundant_experts: int = 0
    """Physical experts beyond the logical ones, per layer."""
    window_size: int = 1000
    """Steps whose load counts."""
    step_interval: int = 3000
    """Steps between two rearrangements."""

    def __post_init__(self) -> None:
        for name, least in (("num_redundant_experts", 0), ("window_size", 1), ("step_interval", 1)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """Sizes of the groups, and whether experts are balanced.

    Construction refuses redundant experts without balancing, and elastic experts without it.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    expert_parallel_size: int = 1
    enable_eplb: bool = False
    """Balance experts over devices by their load."""
    eplb: EplbConfig = field(default_factory=EplbConfig)
    enable_elastic_ep: bool = False
    """Devices may join and leave while the model serves."""

    def __post_init__(self) -> None:
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "expert_parallel_size"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        redundant = self.eplb.num_redundant_experts
        if redundant and not self.enable_eplb:
            raise ConfigError(f"num_redundant_experts must be 0 without enable_eplb, got {redundant}")
        if self.enable_elastic_ep and not self.enable_eplb:
            raise ConfigError("enable_elastic_ep needs enable_eplb, which is false")


def for_draft(target: ParallelConfig, tensor_parallel_size: int = 1) -> ParallelConfig:
    """The draft's configuration, from the *target's*: on one stage, its experts where they are.

    A draft's layout of experts need not be the target's (fewer of them, or none), so it takes no part in
    balancing: its routers would wait for maps that nobody makes. Both invariants of :class:`ParallelConfig`
    hold for the result only if all of it changes at once, and the nested configuration is a new object,
    because the target keeps its own redundant experts (specs/serving.md 2.2).

    Raises:
        ConfigError: the draft's size is neither 1 nor the target's.
    """
    if tensor_parallel_size not in {1, target.tensor_parallel_size}:
        raise ConfigError(
            f"draft_tensor_parallel_size must be 1 or the target's {target.tensor_parallel_size}, "
            f"got {tensor_parallel_size}"
        )
    return replace(
        target,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=1,
        enable_eplb=False,
        eplb=replace(target.eplb, num_redundant_experts=0),
        enable_elastic_ep=False,
    )
