"""Groups of GPUs: NCCL over registered windows, and the kernels of libsymmoe_cuda or _hip.

`symmoe.init` makes them; `symmoe.testing` makes the same ones on machines without a GPU.
"""
