"""`python -m grpo` is the `grpo` command."""

import sys

from grpo.cli import main

sys.exit(main())
