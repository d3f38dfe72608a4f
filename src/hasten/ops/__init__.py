"""The shared operations that carry the speed; each with a plain reference beside it."""
