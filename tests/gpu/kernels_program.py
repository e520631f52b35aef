"""Runs the device kernels on small shapes in one process; compute-sanitizer looks at it."""

from __future__ import annotations

import gpu_device
import torch

from symmoe import topk_reduce

SLOTS = (1, 2, 3, 4, 6, 8, 16, 22)
HIDDENS = (1, 8, 130, 2880)


def main() -> None:
    """Every number of slots with aligned and odd rows, both layouts; compares with the CPU."""
    lab = gpu_device.lab_of(0)
    generator = torch.Generator().manual_seed(1)
    with lab.init() as group:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for slots in SLOTS:
                for hidden in HIDDENS:
                    rows = torch.randn(5, slots, hidden, generator=generator).to(dtype)
                    weights = torch.rand(5, slots, generator=generator)
                    index = torch.arange(5 * slots, dtype=torch.int32).view(5, slots)
                    index[2, 0] = -1
                    flat = rows.view(-1, hidden)
                    dense = group.combine(lab.tensor(rows), lab.tensor(weights))
                    routed = group.combine(
                        lab.tensor(flat), lab.tensor(weights), index=lab.tensor(index)
                    )
                    right = torch.empty(5, hidden, dtype=dtype)
                    topk_reduce(rows, weights, out=right)
                    assert torch.equal(lab.host(dense), right)
                    topk_reduce(flat, weights, index=index, out=right)
                    assert torch.equal(lab.host(routed), right)
        group.check()
    print("kernels: right")


if __name__ == "__main__":
    main()
