"""The benchmark on GPUs: `symmoe bench --device cuda`; `emulated` runs the same code on none.

- `cli`: options, and the run; `report`: tables; `limit`: the time that link and memory allow.
- `processes`: one per rank, several per GPU if need be; `measure`: what each of them does.
- `machine`: streams, events and graphs of CUDA or of `symmoe.testing`.
- `paths`: what is timed; `raw_nccl`: NCCL by ctypes, for the way that older engines go.
"""
