"""A training under torch.profiler: what that saw, as JSON. With `launch-bound`, kernels that wait for the host."""

import json
import sys
from collections import Counter

import torch
from torch.profiler import ProfilerActivity, profile


def keep_busy() -> None:
    """The host is far ahead of the GPU."""
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(8192, 4096, device="cuda")
    for _ in range(40):
        optimizer.zero_grad(set_to_none=True)
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
    loss.item()


def launch() -> None:
    """The GPU waits for the host."""
    x = torch.ones(64, device="cuda")
    for i in range(5000):
        x.add_(1)
        if i % 500 == 0:
            x.sum().item()


torch.manual_seed(0)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
    launch() if sys.argv[1:] == ["launch-bound"] else keep_busy()
    torch.cuda.synchronize()

# A step of the optimizer, as the host calls it, is shown on the GPU's time line too, from its first kernel to its last.
on_gpu = [
    event
    for event in seen.events()
    if event.device_type == torch.autograd.DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
]
copies = [event for event in on_gpu if event.name.startswith("Memcpy")]
kernels = [event for event in on_gpu if not event.name.startswith(("Memcpy", "Memset"))]
ranges = [event.time_range for event in kernels]
print(
    json.dumps(
        {
            "kernels": len(kernels),
            "kernels_us": sum(each.elapsed_us() for each in ranges),
            "from_first_to_last_us": max(each.end for each in ranges) - min(each.start for each in ranges),
            "copies_to_device": sum("HtoD" in event.name for event in copies),
            "copies_to_host": sum("DtoH" in event.name for event in copies),
            "launches": Counter(event.name for event in kernels),
        }
    )
)
