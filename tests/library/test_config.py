"""EngineConfig: what is refused and how, and the way through JSON."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from frizzen import ConfigError, EngineConfig


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model", "", "model must be a non-empty string, got ''"),
        ("dtype", "int8", "dtype must be one of auto, float32, bfloat16, float16, got 'int8'"),
        ("device", "tpu", "device must be one of auto, cpu, cuda, got 'tpu'"),
        ("load_format", "pickle", "load_format must be one of auto, safetensors, gguf, dummy, got 'pickle'"),
        ("max_model_len", 0, "max_model_len must be at least 1, got 0"),
        ("max_num_seqs", 0, "max_num_seqs must be at least 1, got 0"),
        ("max_num_seqs", 2.5, "max_num_seqs must be an integer, got 2.5"),
        ("max_num_seqs", True, "max_num_seqs must be an integer, got True"),
        ("max_num_batched_tokens", -1, "max_num_batched_tokens must be at least 1, got -1"),
        ("kv_cache_memory", 0, "kv_cache_memory must be at least 1, got 0"),
        ("kv_cache_dtype", "int8", "kv_cache_dtype must be one of auto, fp8_e4m3, got 'int8'"),
        ("block_size", 12, "block_size must be one of 8, 16, 32, 64, 128, got 12"),
        ("block_size", 16.0, "block_size must be an integer, got 16.0"),
        ("max_logprobs", -1, "max_logprobs must be at least 0, got -1"),
        ("max_num_seqs", 10**9, "max_num_seqs must be at most 65536, got 1000000000"),
        ("num_threads", 10**6, "num_threads must be at most 1024, got 1000000"),
        ("seed", -1, "seed must be at least 0, got -1"),
        ("speculation", "on", "speculation must be off, auto or a number, got 'on'"),
        ("strict", "yes", "strict must be true or false, got 'yes'"),
    ],
)
def test_a_wrong_value_is_refused_with_field_value_and_limit(field: str, value: object, message: str) -> None:
    values: dict[str, Any] = {"model": "m", field: value}
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**values)


def test_a_path_is_its_text() -> None:
    config = EngineConfig.from_dict({"model": Path("a") / "b", "tokenizer": Path("c")})
    assert (config.model, config.tokenizer) == ("a/b", "c")


def test_json_keeps_every_field() -> None:
    config = EngineConfig(model="m", max_model_len=100, overlap=True, kv_cache_memory=2**31)
    assert EngineConfig.from_json(config.to_json()) == config
    assert set(json.loads(config.to_json())) == {field.name for field in dataclasses.fields(EngineConfig)}


def test_an_option_that_does_not_exist_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        ConfigError, match="the engine has no option 'max_modl_len'; did you mean max_model_len"
    ):
        EngineConfig.from_json('{"model": "m", "max_modl_len": 3}')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the engine configuration is not JSON"),
        ("[]", "must be a JSON object, got list"),
        ("{}", "model must be given"),
    ],
)
def test_json_that_is_no_configuration_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig.from_json(text)


def test_a_configuration_is_frozen_and_replaced_with_the_same_checks() -> None:
    config = EngineConfig(model="m")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 3  # type: ignore[misc]
    with pytest.raises(ConfigError, match="seed"):
        dataclasses.replace(config, seed=-3)
