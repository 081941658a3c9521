"""The Rust core."""

from collections.abc import Callable, Sequence
from typing import final

from frizzen._core import cpu as cpu

__all__ = [
    "ArenaLayout",
    "Engine",
    "RequestOutput",
    "TokenLogprob",
    "__version__",
    "cpu",
    "late_interaction",
    "serve",
]

__version__: str

def serve(argv: Sequence[str]) -> int:
    """Runs the HTTP server until it is told to stop; returns the exit code."""

def late_interaction(query: Sequence[float], document: Sequence[float], size: int) -> float:
    """How well a document fits a query, each a normalised vector of `size` numbers per token."""

@final
class ArenaLayout:
    """Where every array of a step lies."""

    def __new__(
        cls,
        *,
        max_rows: int,
        max_tokens: int,
        max_drafts: int,
        max_logprobs: int,
        max_block_deltas: int,
        max_history: int,
        max_rules: int,
        vocab_size: int,
        pooled_size: int = 0,
    ) -> ArenaLayout: ...
    @staticmethod
    def for_engine(info_json: str) -> ArenaLayout: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def sections(self) -> list[tuple[str, str, tuple[int, ...], int]]: ...

@final
class TokenLogprob:
    """Log-probabilities at one position."""

    @property
    def token_id(self) -> int: ...
    @property
    def logprob(self) -> float: ...
    @property
    def rank(self) -> int: ...
    @property
    def top(self) -> list[tuple[int, float]]: ...

@final
class RequestOutput:
    """One prompt and what was generated for it."""

    @property
    def prompt(self) -> str | None: ...
    @property
    def prompt_token_ids(self) -> list[int]: ...
    @property
    def text(self) -> str: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def stop_reason(self) -> int | str | None: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def speculation_json(self) -> str | None: ...
    @property
    def timings_json(self) -> str: ...
    @property
    def logprobs(self) -> list[TokenLogprob] | None: ...
    @property
    def prompt_logprobs(self) -> list[TokenLogprob] | None: ...

@final
class Engine:
    """A model with its scheduler, driven by the thread that made it."""

    def __new__(cls, config_json: str) -> Engine: ...
    @property
    def info_json(self) -> str: ...
    @property
    def plan_json(self) -> str: ...
    @property
    def speculation_json(self) -> str: ...
    @property
    def counters(self) -> tuple[int, int, int]: ...
    def encode(self, text: str, add_special: bool) -> list[int]: ...
    def decode(self, ids: Sequence[int], skip_special: bool) -> str: ...
    def render_chat(self, messages_json: str, options_json: str) -> str: ...
    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        params_json: Sequence[str],
        progress: Callable[[int, int, int], object] | None = None,
    ) -> list[RequestOutput]: ...
    def encode_pair(self, first: str, second: str | None = None) -> tuple[list[int], int | None]: ...
    def pool(
        self,
        prompts: Sequence[tuple[Sequence[int], int | None]],
        options_json: str,
        progress: Callable[[int, int, int], object] | None = None,
    ) -> list[list[float]]: ...
    def close(self) -> None: ...
