"""The loop IR: kernels before they are machine code, the meaning of all that they call, and passes over them."""
