"""Real models against a memory limit: each runs or is refused in PyTorch's own way, and works again. Prints JSON.

models.py convolution|transformer|compiled
"""

import json
import sys
from collections.abc import Callable

import torch

GIB = 1 << 30


def convolution(batch: int) -> float:
    """A training step of a small ResNet-like network with cuDNN."""
    layers = [torch.nn.Conv2d(3 if i == 0 else 64, 64, 3, padding=1) for i in range(4)]
    network = torch.nn.Sequential(*[part for layer in layers for part in (layer, torch.nn.ReLU())]).cuda()
    loss = network(torch.randn(batch, 3, 224, 224, device="cuda")).square().mean()
    loss.backward()
    return float(loss)


def transformer(batch: int) -> float:
    """Text from a Hugging Face GPT-2 of the usual small size, with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).cuda().eval()
    with torch.inference_mode():
        text = model.generate(torch.ones(batch, 256, dtype=torch.long, device="cuda"), max_new_tokens=8, pad_token_id=0)
    return float(text.sum())


def compiled(batch: int) -> float:
    """torch.compile with CUDA graphs."""

    @torch.compile(mode="reduce-overhead")
    def step(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.mT).softmax(-1).sum()

    x = torch.randn(batch, 512, 512, device="cuda")
    return float([step(x) for _ in range(4)][-1])


def attempt(model: Callable[[int], float], batch: int) -> str:
    try:
        model(batch)
    except torch.OutOfMemoryError:
        return "OutOfMemoryError"
    finally:
        torch.cuda.synchronize()
    return "ran"


model = {"convolution": convolution, "transformer": transformer, "compiled": compiled}[sys.argv[1]]
total_bytes = torch.cuda.get_device_properties(0).total_memory
small = attempt(model, 1)
# A tensor that the limit has no room for beside the context, then the model again.
try:
    torch.empty(total_bytes - GIB // 4, dtype=torch.uint8, device="cuda")
    refusal = ""
except torch.OutOfMemoryError:
    refusal = "OutOfMemoryError"
large = attempt(model, int(48 * total_bytes / GIB))
torch._dynamo.reset()
torch.cuda.empty_cache()
print(json.dumps({"small": small, "refusal": refusal, "large": large, "again": attempt(model, 1)}))
