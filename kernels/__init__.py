"""The Triton kernels of the project; this folder installs as `paged_edu.kernels`."""
