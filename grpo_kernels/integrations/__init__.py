"""The same loss inside other people's trainers: one module a trainer, which imports it."""
