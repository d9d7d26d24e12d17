"""The tiny language model that ships with the package; ``python -m grpo.embedded.build`` makes it."""

from pathlib import Path

MODEL_PATH = Path(__file__).parent / "model"
