"""The residuals in the repository are what the model says today of programs compiled today."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "tests" / "benchmarks"
RESIDUALS = json.loads((BENCHMARKS / "published" / "residuals.json").read_text(encoding="utf-8"))["rows"]
QUICK = (
    "book-all-gather-small", "book-2x2-all-reduce", "fsdp-all-gather", "v5p-all-gather", "v6e-copy", "7x-all-gather",
)  # fmt: skip
CHILD = f"""
import json, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
from hloscope.compile.environment import prepare_environment
prepare_environment(32, attached=False)
from published.compiled import row_named
from published.prediction import predict, shipped_table
print("ANSWERS" + json.dumps({{name: predict(row_named(name), shipped_table()).predicted_us for name in {QUICK!r}}}))
"""


@pytest.mark.tpu_compiler
@pytest.mark.skipif(find_spec("libtpu") is None or find_spec("jax") is None, reason="there is no libtpu here")
def test_quick_rows_are_predicted_as_the_residuals_say(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HLOSCOPE_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.partition("ANSWERS")[2])
    assert found == {name: pytest.approx(RESIDUALS[name]["predicted_us"], rel=0.01) for name in QUICK}


def test_every_required_row_has_a_residual():
    assert {name for name, row in RESIDUALS.items() if not row["extra"]} >= set(QUICK)
    assert sum(not row["extra"] for row in RESIDUALS.values()) == 69
