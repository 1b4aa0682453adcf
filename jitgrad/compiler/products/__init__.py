"""Products and convolutions: BLAS calls and steps of our own."""
