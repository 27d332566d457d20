"""A model of 6 GiB in PyTorch: forward passes and an update, checked against the CPU. Prints JSON.

The driver's own count of what this process holds on the device is read after every step.
"""

import json
import os
import time

import driver_nvml
import torch

MIB = 1 << 20
LAYERS, WIDTH, BATCH = 24, 8192, 64  # 256 MiB a layer
CHECKED = (0, LAYERS // 2, LAYERS - 1)

most_mib = 0.0


def look() -> None:
    """Note what the driver says that this process holds."""
    global most_mib
    torch.cuda.synchronize()
    most_mib = max(most_mib, driver_nvml.process_bytes()[os.getpid()] / MIB)


def error_of(weights: torch.Tensor, inputs: torch.Tensor, outputs: torch.Tensor) -> float:
    """The largest difference from the same product on the CPU."""
    return float((inputs.cpu() @ weights.cpu() - outputs.cpu()).abs().max())


def main() -> None:
    torch.manual_seed(1)
    _, total_bytes = torch.cuda.mem_get_info()
    layers = []
    for _ in range(LAYERS):
        layers.append(torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5)
        look()
    values = torch.randn(BATCH, WIDTH, device="cuda")
    began = time.perf_counter()
    errors = []
    for index, weights in enumerate(layers):
        outputs = values @ weights
        if index in CHECKED:
            errors.append(error_of(weights, values, outputs))
        values = outputs
        look()
    before = [float(weights[7, 11]) for weights in layers]
    for weights in layers:
        weights.mul_(0.5).add_(1)
        look()
    updated = all(abs(float(w[7, 11]) - (old / 2 + 1)) < 1e-6 for w, old in zip(layers, before, strict=True))
    seconds = time.perf_counter() - began
    refusal = ""
    try:
        layers += [torch.empty(256 * MIB, dtype=torch.uint8, device="cuda") for _ in range(16)]
    except torch.OutOfMemoryError as error:
        refusal = type(error).__name__
    look()
    del layers, weights, outputs
    torch.cuda.empty_cache()
    look()
    print(
        json.dumps(
            {
                "total_mib": total_bytes / MIB,
                "model_mib": LAYERS * WIDTH * WIDTH * 4 / MIB,
                "driver_holds_at_most_mib": most_mib,
                "largest_error": max(errors),
                "updated": updated,
                "seconds": seconds,
                "refusal": refusal,
                "free_afterwards_mib": torch.cuda.mem_get_info()[0] / MIB,
            }
        )
    )


if __name__ == "__main__":
    main()
