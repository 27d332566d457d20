"""The kinds of hosts, GPUs and engines that docs/faq.md is about, named where they are seen."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from vgpurun.diagnostics.finding import OK, WARNING, Finding
from vgpurun.host.drivers import EngineFacts
from vgpurun.host.gpus import Gpu

_FAQ = "docs/faq.md says what is known of it"
_SHARED_MEMORY = ("GB10", "Orin", "Thor", "Xavier")  # in the names of GPUs whose memory is the host's
_SANDBOXES = {"runsc": "gVisor", "kata": "Kata Containers", "kata-runtime": "Kata Containers"}


def unusual_host(root: Path = Path("/")) -> Iterator[Finding]:
    """Yield what kind of host this is, where that changes what works. Raises nothing."""
    if (root / "dev" / "dxg").exists():
        yield Finding("host", WARNING, "WSL2: there are no /dev/nvidia* nodes, and NVML lists no processes", _FAQ)
    if (root / "etc" / "nv_tegra_release").exists():
        words = "a Jetson: its GPU's memory is the host's, and a limit of GPU memory holds something else there"
        yield Finding("host", WARNING, words, _FAQ)
    if any((root / name).exists() for name in (".dockerenv", "run/.containerenv")):
        words = (
            "this is a container; if the engine runs outside of it, run vgpurun there too: the engine looks for what "
            "it mounts on its own host"
        )
        yield Finding("host", OK, words)


def unusual_gpus(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Yield the GPUs on which limits mean something else, or that nobody has tried."""
    for gpu in gpus:
        if any(name in gpu.name for name in _SHARED_MEMORY):
            yield Finding(f"GPU {gpu.number}", WARNING, f"{gpu.name}: its memory is the host's", _FAQ)
        elif "GeForce" in gpu.name:
            words = f"{gpu.name}: a consumer card, which was not tried; what NVML does not tell of it is said"
            yield Finding(f"GPU {gpu.number}", OK, words)


def unusual_engine(facts: EngineFacts, driver_mode: str, has_cgroup2: bool) -> Iterator[Finding]:
    """Yield what the engine does otherwise. `driver_mode` is how containers would get the driver."""
    if facts.is_rootless:
        yield Finding("engine, rootless", OK, "containers run as this user's; users do not see each other's")
    if name := _SANDBOXES.get(facts.default_runtime):
        words = f"the engine's default runtime is {facts.default_runtime} ({name}): not tried"
        yield Finding("engine, runtime", WARNING, words, "take --runtime runc for containers with limits")
    if driver_mode == "toolkit" and has_cgroup2 and facts.cgroup_driver == "systemd":
        yield Finding(
            "devices", WARNING,
            "`systemctl daemon-reload` takes the GPUs away from running containers, which then say "
            "'Failed to initialize NVML: Unknown Error'",
            "let the engine bring them by CDI (nvidia-ctk cdi generate), or --driver mount",
        )  # fmt: skip
