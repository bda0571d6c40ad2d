"""What claims/ledger.jsonl says about time: the benchmarks run, and each is named. No time is graded."""

import importlib.util
import json
import math
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if not (ROOT / "bench").is_dir() or not (ROOT / "claims").is_dir():
    pytest.skip("benchmarks and ledger are in a checkout only", allow_module_level=True)

spec = importlib.util.spec_from_file_location("claim_times", ROOT / "bench" / "claim_times.py")
claim_times = importlib.util.module_from_spec(spec)
spec.loader.exec_module(claim_times)

LEDGER = (ROOT / "claims" / "ledger.jsonl").read_text("utf-8")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", claim_times.TIMES, ids=lambda way: way.__name__)
def test_a_benchmark_runs_and_a_claim_names_it(way):
    if "onnx" in way.__name__ and not all(map(find_spec, ("onnx", "onnxruntime"))):
        pytest.skip("needs breakfix[onnx]")
    found = way(rounds=1)
    assert 0 < found < math.inf
    assert json.dumps(f"bench/claim_times/{way.__name__}") in LEDGER
