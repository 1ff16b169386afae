"""Compute the ratios shown in docs/speed.md from the results of a benchmark:

python -m benchmarks.speed.table evidence/speed/bench.json
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HEAD = (
    "B, d, K, k",
    "exact / product",
    "exact / oneDNN's product",
    "exact / own TopK",
    "exact / decoded",
    "SAELens Matryoshka / exact",
    "SAELens TopK / exact",
    "dictionary_learning TopK / exact",
    "sparsify TopK / exact",
    "extra memory",
)


def format_markdown(result: Mapping[str, Any]) -> str:
    """Return a table with one row per shape, using the faster of sparsify's two optimizers."""
    lines = [f"| {' | '.join(HEAD)} |", f"| :-- |{' --: |' * (len(HEAD) - 1)}"]
    for case in result["cases"]:
        step = {entry["name"]: entry["step_ms"] for entry in case["entries"]}
        extra = next(e["peak_mb"] for e in case["entries"] if e["name"] == "osae-exact")
        exact = step["osae-exact"]
        sparsify = min(step["sparsify-topk"], step["sparsify-topk-signum"])
        peers = [step[n] for n in ("saelens-matryoshka", "saelens-topk", "dictionary_learning-topk")]
        floors = case["floor_ms"], case["floor_of_steps_ms"]
        own = [exact / ms for ms in (*floors, step["osae-topk"], step["osae-topk-decoded"])]
        cells = [", ".join(str(n) for n in case["shape"].values()), *(f"{ratio:.2f}" for ratio in own)]
        cells += [*(f"{ms / exact:.1f}" for ms in (*peers, sparsify)), f"{extra:.0f} MB"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(format_markdown(json.loads(Path(sys.argv[1]).read_text())))
