"""The processes of a test run share the machine's cores; kernels run on the GPU if there is one, else in Triton's
interpreter."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded; threads that wait leave the cores
cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if workers > 1:  # what tests start takes no more threads than they do
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // workers)))

import torch  # noqa: E402

if "OMP_NUM_THREADS" not in os.environ:
    torch.set_num_threads(cores)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
