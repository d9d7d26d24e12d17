"""What is simulated is what a real pass takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo.memory.model import FakePolicy, ModelOptions
from grpo.memory.step import training_peaks
from tests.grpo.memory.architectures import CHECKPOINTING, CONFIGS, LORA_R, LOSSES, SIZES
from tests.grpo.memory.measure import ENVIRONMENT

TOLERANCE = 0.1
LINUX = Path("/proc/self/clear_refs")


@pytest.fixture(scope="module")
def measured() -> dict[str, dict[str, int]]:
    """Bytes by architecture and loss, measured in a fresh process."""
    command = [sys.executable, "-m", "tests.grpo.memory.measure"]
    done = subprocess.run(command, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(not LINUX.exists(), reason="a process's high-water mark is read, and set back, in Linux's /proc")
@pytest.mark.parametrize("kind", CONFIGS)
def test_simulated_peaks_are_within_a_tenth_of_measured_ones(kind, measured):
    """Weights, adapters and their gradients aside, of which there is no doubt."""
    options = ModelOptions(dtype="float32", lora_r=LORA_R, gradient_checkpointing=CHECKPOINTING[kind])
    simulated = training_peaks(FakePolicy(CONFIGS[kind], options), SIZES, LOSSES, device="cpu")
    assert min(measured[kind].values()) > 40 * 2**20, "too small for a process's other memory not to matter"
    ratios = {name: simulated[name].total / measured[kind][name] for name in LOSSES}
    assert ratios == {name: pytest.approx(1.0, abs=TOLERANCE) for name in LOSSES}
