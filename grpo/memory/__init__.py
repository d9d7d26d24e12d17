"""Memory of a GRPO step without a GPU and without weights: the real step, run on tensors that have a size alone."""
