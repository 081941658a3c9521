"""The library: a language model in this process, on the caller's thread."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from frizzen.config import EngineConfig
from frizzen.errors import RequestError
from frizzen.interrupts import deferred_interrupts
from frizzen.outputs import RequestOutput
from frizzen.progress import ProgressBar
from frizzen.prompts import Prompt, normalise
from frizzen.sampling import SamplingParams

if TYPE_CHECKING:
    from frizzen._core import Engine

__all__ = ["LLM"]

Message = Mapping[str, Any]
"""``{"role": ..., "content": ...}`` and what else the chat template reads."""


class LLM:
    """A model, ready to generate.

    Everything runs on the calling thread: an exception is the original one, Ctrl-C stops the generation and
    the object stays usable. Use it as a context manager, or ``close`` it, to free the model at a known point.

    Args:
        model: A name of the catalogue (``smollm2-135m``), a directory, a file, or a Hugging Face id.
        **options: Fields of ``EngineConfig``, such as ``dtype`` and ``max_model_len``.

    Raises:
        ConfigError: an option is wrong, or does not fit the model or the memory.
        LoadError: the model cannot be loaded.
    """

    def __init__(self, model: str, **options: Any) -> None:
        # The extension and torch are loaded here and not with the module: importing frizzen stays cheap.
        from frizzen._core import Engine

        self.config = EngineConfig.from_dict({"model": model, **options})
        self._engine: Engine | None = Engine(self.config.to_json())
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

    @property
    def plan(self) -> dict[str, Any]:
        """The kernel plan: what serves each layer, and why nothing faster does."""
        plan: dict[str, Any] = json.loads(self._open().plan_json)
        return plan

    def close(self) -> None:
        """Frees the model; a second call does nothing."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> Engine:
        if self._engine is None:
            raise RuntimeError("this LLM is closed")
        return self._engine

    def _run(
        self,
        prompts: list[str | list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool | None,
        texts: Sequence[str] | None = None,
    ) -> list[RequestOutput]:
        engine = self._open()
        params = _params_json(sampling_params, len(prompts))
        if not prompts:
            return []
        bar = ProgressBar() if (sys.stderr.isatty() if use_tqdm is None else use_tqdm) else None
        with deferred_interrupts() as let_interrupts_through:

            def between_steps(done: int, total: int, tokens: int) -> None:
                let_interrupts_through()
                if bar:
                    bar.update(done, total, tokens)

            try:
                outputs = engine.generate(prompts, params, between_steps)
            finally:
                if bar:
                    bar.close()
        return [
            RequestOutput.of(output, texts[index] if texts else None, self._text)
            for index, output in enumerate(outputs)
        ]

    def _text(self, token: int) -> str:
        """Text of one token; log-probabilities name the same few tokens again and again."""
        if token not in self._texts:
            self._texts[token] = self._open().decode([token], False)
        return self._texts[token]


def _params_json(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[str]:
    if params is None or isinstance(params, SamplingParams):
        return [(params or SamplingParams()).to_json()] * count
    if len(params) != count:
        raise RequestError(
            f"sampling_params must be one, or one per prompt: got {len(params)} for {count} prompts"
        )
    for index, entry in enumerate(params):
        if not isinstance(entry, SamplingParams):
            raise RequestError(f"sampling_params[{index}] must be SamplingParams, got {type(entry).__name__}")
    return [entry.to_json() for entry in params]
