"""What runs inside a sandbox: the standard library only, nothing of `grpo`."""
