"""One process uses the machine's cores once; kernels run on the GPU if there is one, else in Triton's interpreter."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded; threads that wait leave the cores

import torch

if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
