"""Where code that a model wrote is run: away from the network, the files and the processes of this machine.

- `run_python`: a program with its input, and what it printed.
- `judge`: a program's functions under tests. The tests run in a second sandbox of their own and only plain data
  passes between the two, so that the program can neither read an expected value nor write a verdict.
"""

from grpo.sandbox.process import Limits, SandboxError
from grpo.sandbox.program import Outcome, encodable, run_python
from grpo.sandbox.verdict import Unit, Verdict, judge

__all__ = ["Limits", "Outcome", "SandboxError", "Unit", "Verdict", "encodable", "judge", "run_python"]
