"""Kernels in Triton for NVIDIA GPUs, and when they are used."""
