"""A training that keeps the GPU busy, under torch.profiler: what that saw, as JSON."""

import json

import torch
from torch.profiler import ProfilerActivity, profile

torch.manual_seed(0)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
    layers = [torch.nn.Linear(4096, 4096) for _ in range(8)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(8192, 4096, device="cuda")
    for _ in range(40):
        optimizer.zero_grad(set_to_none=True)
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
    total = loss.item()
    torch.cuda.synchronize()

on_gpu = [event for event in seen.events() if event.device_type == torch.autograd.DeviceType.CUDA]
copies = [event for event in on_gpu if event.name.startswith("Memcpy")]
kernels = [event for event in on_gpu if not event.name.startswith(("Memcpy", "Memset"))]
print(
    json.dumps(
        {
            "kernels": len(kernels),
            "kernels_us": sum(event.time_range.elapsed_us() for event in kernels),
            "copies_to_device": sum("HtoD" in event.name for event in copies),
            "copies_to_host": sum("DtoH" in event.name for event in copies),
        }
    )
)
