"""From nothing to the first token, in this process: prints when what was done, as JSON.

``FRIZZEN_BENCH_BEGAN`` is when the process was asked for, in seconds since 1970. Nothing here imports torch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from benches.gpu.serving import greedy, prompt
from benches.gpu.shape import QWEN3_30B_A3B
from frizzen import LLM

OPTIONS: dict[str, Any] = {"device": "cuda", "dtype": "bfloat16", "max_num_seqs": 256}


def main(model: str) -> None:
    """Starts the engine on dummy weights and asks for a token."""
    began = float(os.environ["FRIZZEN_BENCH_BEGAN"])
    with LLM(model, load_format="dummy", enable_prefix_caching=False, **OPTIONS) as llm:
        ready = time.time() - began
        llm.generate([prompt(128, 0, QWEN3_30B_A3B.vocabulary)], greedy(1))
        first = time.time() - began
        phases = {phase["phase"]: phase["seconds"] for phase in llm.start}
    print(json.dumps({"phases": phases, "ready_s": round(ready, 2), "first_token_s": round(first, 2)}))


if __name__ == "__main__":
    main(sys.argv[1])
