"""Libraries that talk: what a command prints is its own."""

from __future__ import annotations

import logging as std_logging
import warnings


def quiet_libraries() -> None:
    """No progress bars, and no warnings that the user can do nothing about."""
    import huggingface_hub.utils.logging as hub_logging
    from transformers.utils import logging

    warnings.filterwarnings("ignore", category=FutureWarning)  # between versions of transformers and peft
    warnings.filterwarnings("ignore", message="fan_in_fan_out")  # PEFT puts it right itself
    std_logging.getLogger("bitsandbytes").setLevel(std_logging.ERROR)  # it may be loaded where nothing needs it
    hub_logging.set_verbosity_error()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
