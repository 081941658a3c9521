"""Proposals equal those of plain torch, in mixed batches with chunks, rejections and shared prefixes."""

from __future__ import annotations

import json
import math
import random
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch

from frizzen.kernels.facts import detect_machine
from frizzen.kernels.plan import PlanBuilder, default_registry
from frizzen.kernels.torch_paging import Paging
from frizzen.loading.load import LoadRequest, load_model
from frizzen.models.tapped import TappedModel
from frizzen.speculate.drafter import DraftBlocks
from frizzen.speculate.drafting import Drafting
from frizzen.speculate.load import DraftRequest, load_drafter
from frizzen.worker.graphs import GraphRunner
from frizzen.worker.lattice import Lattice
from frizzen.worker.worker import Worker
from tests.conftest import CheckpointMaker
from tests.speculate.checkpoints import VOCAB, with_mtp, write_dspark, write_eagle3
from tests.speculate.oracles import DSparkOracle, Eagle3Oracle, MtpOracle, Target
from tests.worker.arena_layout import layout
from tests.worker.driver import BLOCK_SIZE, Driver, FakeCapture, Request, worker_info

COUNT = 4
LIMITS = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 64, "num_blocks": 64}


def driver_of(target: Path, name: str, model: Path | None, *, replays: bool = False) -> Driver:
    """A driver of a worker with this drafter; ``replays`` runs its steps as graphs."""
    plan = PlanBuilder(default_registry(), detect_machine("cpu"))
    request = LoadRequest(model=str(target), dtype="float32", block_size=BLOCK_SIZE)
    loaded = load_model(request, plan)
    wanted = DraftRequest(
        name=name, target=request, model=None if model is None else str(model), num_drafts=COUNT
    )
    drafter = load_drafter(wanted, loaded, plan).drafter
    loaded.allocate_kv(LIMITS["num_blocks"], BLOCK_SIZE)
    blocks = DraftBlocks.of(LIMITS["num_blocks"], drafter.reach, BLOCK_SIZE)
    drafter.allocate_kv(blocks.total(LIMITS["max_num_seqs"]), BLOCK_SIZE)
    info = worker_info(vocab_size=VOCAB, max_drafts=COUNT, **LIMITS)
    model = TappedModel(loaded, drafter.taps) if drafter.taps else loaded
    graphs = None
    if replays:
        lattice = Lattice.of(max_rows=4, max_drafts=COUNT, max_context=64, max_tokens=64)
        width = loaded.config.hidden_size * (1 + len(drafter.taps))
        graphs = partial(GraphRunner, model.forward, lattice, capture=FakeCapture(width), clock=lambda: 0.0)
    worker = Worker(model, info, torch.device("cpu"), graphs=graphs, drafting=Drafting(drafter, blocks))
    limits = layout(
        max_rows=info["max_num_seqs"],
        max_tokens=info["max_num_batched_tokens"],
        max_drafts=COUNT,
        max_logprobs=info["max_logprobs"],
        vocab_size=VOCAB,
    )
    driver = Driver(worker, limits)
    driver.propose = COUNT
    return driver


def check(driver: Driver, target: Target, oracle: Any, seed: int = 0, steps: int = 9) -> None:
    """Random steps: chunks of prompts, decodes, drafts that are right, wrong or the drafter's own."""
    rng = random.Random(seed)

    def request(count: int) -> Request:
        return Request([rng.randrange(VOCAB) for _ in range(count)])

    requests = [request(11), request(1), request(6)]
    checked = 0
    for step in range(steps):
        if step == 4:
            # A second owner of the first one's full blocks, whose text goes on otherwise.
            donor, shared = requests[0], 2 * BLOCK_SIZE
            heir = Request([*donor.prompt[:shared], *request(3).prompt], computed=shared)
            heir.inherited = donor.blocks[: shared // BLOCK_SIZE]
            requests.append(heir)
        plan = {}
        for one in requests:
            left = one.total - one.computed
            plan[one] = left if step % 3 else rng.randint(1, left)
            one.drafts = []
            if plan[one] == left and one.outputs:
                right = target.greedy(one.known, COUNT)
                kind = rng.randrange(4)
                one.drafts = [
                    [],
                    right,
                    one.proposed,
                    [*right[: rng.randrange(COUNT)], rng.randrange(VOCAB)],
                ][kind]
        driver.step(plan)
        for one in requests:
            assert one.proposed == [] or len(one.proposed) == COUNT
            if one.proposed:
                wanted = oracle(one.known, COUNT)
                drafts, chances = wanted if isinstance(wanted, tuple) else (wanted, [])
                assert one.proposed == drafts, (step, requests.index(one))
                if chances:
                    assert one.confidence == pytest.approx(chances, abs=2e-5)
                else:
                    assert all(math.isnan(chance) for chance in one.confidence)
                checked += 1
    assert checked > 2 * steps
    assert {right for one in requests for _, right in one.accepted} >= {0, COUNT}
    for one in requests:
        driver.release(one)


def check_replays(driver: Driver, target: Target, oracle: Any) -> None:
    """The same over several batches, until most steps are replayed to their end."""
    for seed in range(4):
        check(driver, target, oracle, seed)
    graphs = json.loads(driver.worker.control("graphs", ""))
    assert graphs["ends"]["failure"] is None
    assert graphs["ends"]["steps"] > 9
    assert {tuple(entry[:2]) for entry in graphs["ends"]["captured"]} >= {(4, 5)}


@pytest.fixture(scope="module")
def llama(tiny_checkpoint: CheckpointMaker) -> Path:
    return tiny_checkpoint("llama", num_hidden_layers=4)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_mtp_proposes_what_plain_torch_does(
    tiny_checkpoint: CheckpointMaker, tmp_path: Path, family: str, depth: int
) -> None:
    path = with_mtp(tiny_checkpoint(family), tmp_path / "model", depth=depth)
    target = Target(path)
    check(driver_of(path, "mtp", None), target, MtpOracle(path, target, depth))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"speculators": True, "norm_before_residual": True},
        {"own_embedding": True, "draft_vocab": VOCAB},
        {"layers": 2},
        {"layers": 3, "speculators": True, "norm_before_residual": True},
    ],
    ids=["plain", "speculators", "own vocabulary", "two layers", "three layers"],
)
def test_eagle3_proposes_what_plain_torch_does(llama: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    taps = (1, 2, 3)
    path = write_eagle3(tmp_path / "eagle", taps=taps, **options)
    target = Target(llama)
    check(driver_of(llama, "eagle3", path), target, Eagle3Oracle(path, target, taps))


SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}


@pytest.mark.parametrize(
    ("options", "from_anchor"),
    [
        ({}, True),
        ({"speculators": True}, False),
        ({"sample_from_anchor": False}, False),
        ({"dspark_draft_topk": 7, "logit_scale": 0.5, "confidence": "hidden"}, True),
        ({"draft_vocab": 150, "own_embedding": True, "input_vocab": VOCAB + 1, "confidence": ""}, True),
        ({"draft_vocab": VOCAB + 8, "input_vocab": VOCAB + 8}, True),
        ({**SLIDING}, True),
        ({**SLIDING, "is_causal": False}, True),
        ({"is_causal": True}, True),
    ],
    ids=[
        "anchor",
        "speculators",
        "fill-in",
        "top-k",
        "vocabularies",
        "more tokens",
        "sliding",
        "wide",
        "causal",
    ],
)
def test_dspark_proposes_what_plain_torch_does(
    llama: Path, tmp_path: Path, options: dict[str, Any], from_anchor: bool
) -> None:
    taps = (0, 2)
    path = write_dspark(tmp_path / "dspark", taps=taps, block=COUNT, **options)
    target = Target(llama)
    oracle = DSparkOracle(path, target, entered=[tap + 1 for tap in taps], from_anchor=from_anchor)
    check(driver_of(llama, "dspark", path), target, oracle)


def test_a_draft_model_proposes_what_it_would_say(tiny_checkpoint: CheckpointMaker, llama: Path) -> None:
    path = tiny_checkpoint("qwen2")
    small = Target(path)
    check(driver_of(llama, "draft_model", path), Target(llama), small.greedy)


@pytest.mark.parametrize(
    "name", ["mtp deepseek_v3", "mtp glm4_moe", "mtp glm4_moe 2", "eagle3", "dspark", "draft_model"]
)
def test_graphs_propose_what_plain_torch_does(
    tiny_checkpoint: CheckpointMaker, llama: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padded rows and tokens, drafts and their verification inside the graph."""
    # As on a GPU: only there do steps have tokens that belong to no row.
    monkeypatch.setattr(Paging, "rows", partialmethod(Paging.rows, padded=True))
    if name.startswith("mtp"):
        _, family, *deeper = name.split()
        depth = int(deeper[0]) if deeper else 1
        path = with_mtp(tiny_checkpoint(family), tmp_path / "model", depth=depth)
        target = Target(path)
        check_replays(driver_of(path, "mtp", None, replays=True), target, MtpOracle(path, target, depth))
        return
    target = Target(llama)
    if name == "eagle3":
        path = write_eagle3(tmp_path / name, taps=(1, 2, 3))
        oracle: Any = Eagle3Oracle(path, target, (1, 2, 3))
    elif name == "dspark":
        path = write_dspark(tmp_path / name, taps=(0, 2), block=COUNT)
        oracle = DSparkOracle(path, target, entered=[1, 3], from_anchor=True)
    else:
        path = tiny_checkpoint("qwen2")
        oracle = Target(path).greedy
    check_replays(driver_of(llama, name, path, replays=True), target, oracle)
