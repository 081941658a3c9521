"""The library: a language model in this process, on the caller's thread."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from operator import mul
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from frizzen.config import EngineConfig
from frizzen.errors import RequestError
from frizzen.interrupts import deferred_interrupts
from frizzen.outputs import (
    ClassificationOutput,
    EmbeddingOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringOutput,
)
from frizzen.plugins import prepare_plugins
from frizzen.progress import ProgressBar
from frizzen.prompts import Prompt, normalise
from frizzen.sampling import SamplingParams

if TYPE_CHECKING:
    from frizzen._core import Engine

__all__ = ["LLM"]

T = TypeVar("T")

Tokens = tuple[list[int], int | None]
"""Ids of a text or a pair, and the index of the first token of the second text."""

Message = Mapping[str, Any]
"""``{"role": ..., "content": ...}`` and what else the chat template reads."""


class LLM:
    """A model, ready to generate.

    Everything runs on the calling thread: an exception is the original one, Ctrl-C stops the generation and
    the object stays usable. It belongs to the thread that made it. Use it as a context manager, or ``close``
    it, to free the model at a known point.

    Args:
        model: A name of the catalogue (``smollm2-135m``), a directory, a file, or a Hugging Face id.
        **options: Fields of ``EngineConfig``, such as ``dtype`` and ``max_model_len``.

    Raises:
        ConfigError: an option is wrong, or does not fit the model or the memory.
        LoadError: the model cannot be loaded.
    """

    def __init__(self, model: str | PathLike[str], **options: Any) -> None:
        # The extension and torch are loaded here and not with the module: importing frizzen stays cheap.
        from frizzen._core import Engine

        prepare_plugins(options.get("reasoning_parser_plugin"), options.get("tool_parser_plugin"))
        self.config = EngineConfig.from_dict({"model": model, **options})
        self._engine: Engine | None = Engine(self.config.to_json())
        self._thread = threading.get_ident()
        self._texts: dict[int, str] = {}

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Completes one prompt or a batch of them, in their order.

        Args:
            prompts: Text, token ids (a list, or an integer array of numpy or torch), ``{"prompt": text}``,
                ``{"prompt_token_ids": ids}``, or a list of these.
            sampling_params: For all prompts, or one per prompt; ``SamplingParams()`` by default.
            use_tqdm: Show a progress bar on standard error; by default if that is a terminal.

        Raises:
            RequestError: a prompt or a parameter that the model does not allow; nothing was generated.
        """
        return self._run(normalise(prompts), sampling_params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        use_tqdm: bool | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation, or each of several, by the model's chat template.

        Args:
            messages: A conversation, or a list of conversations.
            sampling_params: As for ``generate``.
            add_generation_prompt: End the prompt with the opening of the assistant's turn.
            continue_final_message: Leave the last message open, to be continued.
            chat_template_kwargs: Further variables of the template.
            tools: Tools that the template describes to the model, in OpenAI's form.
            use_tqdm: As for ``generate``.
        """
        if add_generation_prompt and continue_final_message:
            raise RequestError(
                "continue_final_message needs add_generation_prompt=False: a turn is either new or continued"
            )
        if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
            raise RequestError(f"messages must be a list of messages, got {type(messages).__name__}")
        if not messages:
            raise RequestError("messages must not be empty")
        conversations = [messages] if isinstance(messages[0], Mapping) else messages
        options = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "chat_template_kwargs": dict(chat_template_kwargs or {}),
            "tools": tools,
        }
        engine = self._open()
        texts = [
            engine.render_chat(json.dumps(conversation), json.dumps(options))
            for conversation in conversations
        ]
        # The template writes the special tokens itself, so that the tokeniser must add none.
        tokens: list[str | list[int]] = [engine.encode(text, False) for text in texts]
        return self._run(tokens, sampling_params, use_tqdm, texts)

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_task: str | None = None,
        use_activation: bool | None = None,
        use_tqdm: bool | None = None,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What the model makes of one text or of each of several, as ``/pooling`` returns it.

        Args:
            prompts: As for ``generate``.
            pooling_task: ``embed`` or ``classify``, whichever the model has, gives a vector of each text;
                ``token_embed`` or ``token_classify`` one of each token, ``[T, size]``. The model's own by
                default.
            use_activation: Normalise embeddings, or make probabilities; by default what the model was made
                for.
            use_tqdm: As for ``generate``.

        Raises:
            RequestError: the model has another task, or a prompt does not fit it.
        """
        info = self._pooling()
        own = f"token_{info['task']}" if info["per_token"] else info["task"]
        task = own if pooling_task is None else pooling_task
        if task not in {own, f"token_{info['task']}"}:
            raise RequestError(f"this model's task is {own}, not {task}")
        per_token = task.startswith("token_")
        size = info["size"]

        def output(values: list[float]) -> PoolingOutput:
            if not per_token:
                return PoolingOutput(values)
            return PoolingOutput([values[at : at + size] for at in range(0, len(values), size)])

        return self._pool(
            self._tokens(prompts), output, use_tqdm, activate=use_activation, per_token=per_token
        )

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        use_tqdm: bool | None = None,
    ) -> list[PoolingRequestOutput[EmbeddingOutput]]:
        """The embedding of one text or of each of several.

        Args:
            prompts: As for ``generate``.
            dimensions: Cut the embeddings to this length, before they are normalised; only for models that
                were trained for it.
            normalize: Give them length 1; by default what the model was made for.
            use_tqdm: As for ``generate``.

        Raises:
            RequestError: the model has another task, or a prompt does not fit it.
        """
        self._check_task("embed")
        return self._pool(
            self._tokens(prompts),
            EmbeddingOutput,
            use_tqdm,
            dimensions=dimensions,
            activate=normalize,
        )

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_activation: bool | None = None,
        use_tqdm: bool | None = None,
    ) -> list[PoolingRequestOutput[ClassificationOutput]]:
        """The probability of each class for one text or for each of several.

        Args:
            prompts: As for ``generate``.
            use_activation: ``False`` gives the model's raw numbers instead.
            use_tqdm: As for ``generate``.

        Raises:
            RequestError: the model has another task, or a prompt does not fit it.
        """
        self._check_task("classify")
        return self._pool(
            self._tokens(prompts),
            ClassificationOutput,
            use_tqdm,
            activate=use_activation,
        )

    def score(
        self, data_1: str | Sequence[str], data_2: str | Sequence[str], *, use_tqdm: bool | None = None
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        """How well texts fit: one to each of several, or pair by pair.

        A cross-encoder (a classifier with one class) reads both texts together; of an embedding model it is
        the cosine of their embeddings, or, where each token has one, how well the tokens fit (late
        interaction).

        Args:
            data_1: A text, or as many as ``data_2`` has.
            data_2: A text or several.
            use_tqdm: As for ``generate``.

        Raises:
            RequestError: the lists do not match, or the model's task is another.
        """
        firsts = [data_1] if isinstance(data_1, str) else list(data_1)
        seconds = [data_2] if isinstance(data_2, str) else list(data_2)
        if len(firsts) not in (1, len(seconds)) or not seconds:
            raise RequestError(
                f"data_1 must have one text or as many as data_2, got {len(firsts)} and {len(seconds)}"
            )
        if self._pooling()["task"] == "classify":
            self._check_task("score")
            if len(firsts) == 1:
                firsts *= len(seconds)
            encode = self._open().encode_pair
            pairs = [encode(first, second) for first, second in zip(firsts, seconds, strict=True)]
            return self._pool(pairs, lambda vector: ScoringOutput(vector[0]), use_tqdm)
        if self._pooling()["per_token"]:
            return self._late_interaction(firsts, seconds, use_tqdm)
        found = self.embed([*firsts, *seconds], normalize=True, use_tqdm=use_tqdm)
        left, right = found[: len(firsts)], found[len(firsts) :]
        if len(left) == 1:
            left *= len(right)
        return [
            PoolingRequestOutput(
                ScoringOutput(math.fsum(map(mul, one.outputs.embedding, other.outputs.embedding))),
                one.prompt_token_ids + other.prompt_token_ids,
            )
            for one, other in zip(left, right, strict=True)
        ]

    def _late_interaction(
        self, firsts: Sequence[str], seconds: Sequence[str], use_tqdm: bool | None
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        from frizzen._core import late_interaction

        size = self._pooling()["size"]
        tokens = self._tokens([*firsts, *seconds])
        found = self._pool(tokens, list[float], use_tqdm, activate=True, per_token=True)
        left, right = found[: len(firsts)], found[len(firsts) :]
        if len(left) == 1:
            left *= len(right)
        return [
            PoolingRequestOutput(
                ScoringOutput(late_interaction(one.outputs, other.outputs, size)),
                one.prompt_token_ids + other.prompt_token_ids,
            )
            for one, other in zip(left, right, strict=True)
        ]

    @property
    def plan(self) -> dict[str, Any]:
        """The kernel plan: what serves each layer, and why nothing faster does."""
        plan: dict[str, Any] = json.loads(self._open().plan_json)
        return plan

    @property
    def speculation(self) -> dict[str, Any]:
        """How drafts fare, as ``GET /v1/speculation`` shows it; ``drafter`` is ``None`` if there is none."""
        status: dict[str, Any] = json.loads(self._open().speculation_json)
        return status

    @property
    def start(self) -> list[dict[str, Any]]:
        """What the start took: ``phase`` and its ``seconds``, in order; ``before`` began with the process."""
        phases: list[dict[str, Any]] = json.loads(self._open().info_json).get("start", [])
        return phases

    def close(self) -> None:
        """Frees the model; a second call does nothing."""
        if self._engine is not None:
            self._open().close()
            self._engine = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("this LLM is closed")
        if threading.get_ident() != self._thread:
            raise RuntimeError("an LLM belongs to the thread that made it, and this is another one")
        return self._engine

    def _run(
        self,
        prompts: list[str | list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool | None,
        texts: Sequence[str] | None = None,
    ) -> list[RequestOutput]:
        engine = self._open()
        params = _params(sampling_params, len(prompts))
        if not prompts:
            return []
        lowered = [entry.to_json() for entry in params]
        outputs = self._watched(lambda progress: engine.generate(prompts, lowered, progress), use_tqdm)
        return [
            RequestOutput.of(output, texts[index] if texts else None, self._text, params[index])
            for index, output in enumerate(outputs)
        ]

    def _pooling(self) -> dict[str, Any]:
        """What the model's vectors are."""
        info = json.loads(self._open().info_json).get("pooling")
        if info is None:
            raise RequestError(
                "this model generates text; it returns no vectors unless it is loaded with runner='pooling'"
            )
        found: dict[str, Any] = info
        return found

    def _check_task(self, wanted: str) -> None:
        info = self._pooling()
        if wanted == "score" and info["size"] != 1:
            raise RequestError(
                f"scores need a classifier with one class, this model's task is classify with {info['size']}"
            )
        own = f"token_{info['task']}" if info["per_token"] else info["task"]
        if own != wanted and (wanted != "score" or info["per_token"]):
            raise RequestError(f"this model's task is {own}, not {wanted}")

    def _tokens(self, prompts: Prompt | Sequence[Prompt]) -> list[Tokens]:
        encode = self._open().encode_pair
        return [
            encode(prompt) if isinstance(prompt, str) else (prompt, None) for prompt in normalise(prompts)
        ]

    def _pool(
        self,
        prompts: list[Tokens],
        output: Callable[[list[float]], T],
        use_tqdm: bool | None,
        **options: object,
    ) -> list[PoolingRequestOutput[T]]:
        engine = self._open()
        vectors = self._watched(
            lambda progress: engine.pool(prompts, json.dumps(options), progress), use_tqdm
        )
        return [
            PoolingRequestOutput(output(vector), ids)
            for vector, (ids, _) in zip(vectors, prompts, strict=True)
        ]

    @staticmethod
    def _watched(run: Callable[[Callable[[int, int, int], None]], list[T]], use_tqdm: bool | None) -> list[T]:
        """Runs the engine with a progress bar, and with interrupts between its steps only."""
        bar = ProgressBar() if (sys.stderr.isatty() if use_tqdm is None else use_tqdm) else None
        with deferred_interrupts() as let_interrupts_through:

            def between_steps(done: int, total: int, tokens: int) -> None:
                let_interrupts_through()
                if bar:
                    bar.update(done, total, tokens)

            try:
                return run(between_steps)
            finally:
                if bar:
                    bar.close()

    def _text(self, token: int) -> str:
        """Text of one token; log-probabilities name the same few tokens again and again."""
        if token not in self._texts:
            self._texts[token] = self._open().decode([token], False)
        return self._texts[token]


def _params(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise RequestError(
            f"sampling_params must be one, or one per prompt: got {len(params)} for {count} prompts"
        )
    for index, entry in enumerate(params):
        if not isinstance(entry, SamplingParams):
            raise RequestError(f"sampling_params[{index}] must be SamplingParams, got {type(entry).__name__}")
    return params
