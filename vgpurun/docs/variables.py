"""Every environment variable that vgpurun, its library or the simulated GPU reads; the documentation's table."""

from dataclasses import dataclass

from vgpurun import abi
from vgpurun.config.schema import DEFAULTS
from vgpurun.limits import quota


@dataclass(frozen=True)
class Variable:
    """An environment variable, who reads it, and what it does (Markdown, one sentence or two)."""

    name: str
    reader: str
    meaning: str


_CLI = "`vgpurun`"
_BOTH = "`vgpurun` and the library"
_LIBRARY = "the library"
_SIMULATED = "the simulated GPU"

VARIABLES = (
    Variable(
        abi.ENV_MEMORY_LIMIT,
        _BOTH,
        "Memory limit of every GPU: `2g`, `1.5GiB`, `1024m`, plain bytes, `50%`. With `_<i>` at its end (`_0`, `_1`, "
        "...) that of one GPU, by its index in the nvidia-smi that the program sees. "
        "Beside `--mem` the lower limit holds. Set inside a container, a slice or `vgpurun local` (`env`, `exec -e`), "
        "it is a limit of each process that has it, within the container's; there `_<i>` does not count.",
    ),
    Variable(
        abi.ENV_SM_LIMIT,
        _BOTH,
        "Compute limit of every GPU in percent of its time: `50` or `50%`; `0` and `100` mean none. `_<i>` as above.",
    ),
    Variable(abi.ENV_WRAPPER_MEMORY, _BOTH, f"The same as `{abi.ENV_MEMORY_LIMIT}`, which comes first."),
    Variable(
        quota.ENV_TOOLKIT_LIMIT,
        _CLI,
        f"A memory limit in whole MiB, as NVIDIA's container toolkit has it for a hook of its own. Beside `--mem` and "
        f"`{abi.ENV_MEMORY_LIMIT}` the lower limit holds, and the container finds that one in this variable.",
    ),
    Variable(quota.ENV_TOOLKIT_REQUEST, _CLI, "What of that is guaranteed, as the first size of `--mem 4g:8g`."),
    Variable(abi.ENV_ALNAIR_SM, _BOTH, f"The same as `{abi.ENV_SM_LIMIT}`, which comes first."),
    Variable(
        abi.ENV_SM_POLICY,
        _BOTH,
        "Stands for `--sm-policy` where that is not given, in HAMi's words. The compute limit holds always (`force`, "
        "as without this variable), while another container of the same or a higher priority wants the GPU "
        "(`default`), or never (`disable`).",
    ),
    Variable(
        abi.ENV_PRIORITY,
        _BOTH,
        "Stands for `--priority` where that is not given: `0` (high, as without this variable) or `1` (low).",
    ),
    Variable(
        abi.ENV_OVERSUBSCRIBE,
        _LIBRARY,
        f"`true`: `{abi.ENV_MEMORY_LIMIT}` is what the program sees, and what is past the device's share comes from "
        "the host's memory. Programs that `vgpurun` starts have `--oversubscribe` instead.",
    ),
    Variable(
        abi.ENV_MEMORY_SHARE,
        _LIBRARY,
        f"The device's share with `{abi.ENV_OVERSUBSCRIBE}`, written like the limit, also with `_<i>`; without it, "
        "what the device has.",
    ),
    Variable(
        abi.ENV_LOG_LEVEL,
        _LIBRARY,
        "What the library says on stderr: `0` errors, `1` and `2` warnings and messages, `3` information, `4` "
        "everything. `vgpurun` passes the host's value on.",
    ),
    Variable(
        abi.ENV_PROFILE,
        _LIBRARY,
        "A folder for profiles, Alnair's name: each process that uses the GPU makes a file there. `--profile` sets it.",
    ),
    Variable(
        abi.ENV_PROFILE_SIZE,
        _LIBRARY,
        "How large the profile of a process may become; then the oldest records are dropped. By default 64m. "
        "`--profile-size` sets it.",
    ),
    Variable(
        abi.ENV_USAGE_FILE,
        _LIBRARY,
        "The file in which the processes under one limit share what they use. `vgpurun` sets it.",
    ),
    Variable(
        "CUDA_MPS_PIPE_DIRECTORY",
        _LIBRARY,
        "The folder by which CUDA finds an MPS server. `vgpurun` sets it for programs of `--together`, and for all "
        "others of `vgpurun local`, to keep them out of a daemon that runs.",
    ),
    Variable(
        abi.ENV_LIMITS_FILE,
        _LIBRARY,
        "The limits file of a process outside a container. `vgpurun local` sets it.",
    ),
    Variable(
        abi.ENV_LIMITS_TAKEN,
        _LIBRARY,
        "The variables of limits that a launch has taken into the limits file, with their values: they are no limits "
        "of single processes. `vgpurun` sets it where there are some.",
    ),
    Variable(
        abi.ENV_PRESENCE_FILE,
        _LIBRARY,
        "Where a process outside a container says that it is at work on the GPUs. `vgpurun local` sets it; without it "
        "the library makes such a file for all processes with one usage file.",
    ),
    Variable(
        abi.ENV_DISABLE_CONTROL,
        _LIBRARY,
        "`true`: no limits, as in HAMi; only in a pod of a node whose administrator allows it "
        "(`vgpurun device-plugin --allow-disable-control`).",
    ),
    Variable(
        "VGPURUN_STATE_DIR",
        _CLI,
        "Where the state of containers is kept, instead of `/var/lib/vgpurun` (root) or `~/.local/state/vgpurun`.",
    ),
    Variable("VGPURUN_RAY", _CLI, "What a worker of Ray is told of its node; the plugin of a node sets it."),
    Variable("NODE_NAME", _CLI, "`vgpurun dra-plugin`: this node's name in the cluster; `--node` goes before it."),
    Variable("VGPURUN_LIBRARY", _CLI, "Another `libvgpu.so`, used or refused but never replaced."),
    *(
        Variable(key.variable, _CLI, f"The default of `--{option}`, before that of the configuration files.")
        for key in DEFAULTS
        for option in [key.name.replace("_", "-")]
    ),
    Variable(
        "JOURNAL_STREAM", _CLI, "Set by systemd: lines of `vgpurun guard` begin with their level for the journal."
    ),
    Variable("VGPURUN_DEBUG", _CLI, "`1` shows where in the code an error came from."),
    Variable("NO_COLOR", _CLI, "Whatever it is: no colours, in a terminal either."),
    Variable("DOCKER_HOST", _CLI, "The Docker Engine, instead of Docker's current context; it must be this host's."),
    Variable("DOCKER_CONTEXT", _CLI, "The Docker context to use."),
    Variable("DOCKER_CONFIG", _CLI, "The folder of docker's own configuration, instead of `~/.docker`."),
    Variable("DOCKER_API_VERSION", _CLI, "The version of the engine's API to speak, instead of the engine's own."),
    Variable("DOCKER_DEFAULT_PLATFORM", _CLI, "What `--platform` is where it is not given."),
    Variable("DOCKER_CONTENT_TRUST", _CLI, "`1`: an image needs a signature, which is not checked: it is refused."),
    Variable("DOCKER_TLS_VERIFY", _CLI, "Speak TLS to the engine at a TCP address, and check who it is."),
    Variable("DOCKER_CERT_PATH", _CLI, "The folder of the certificates for that."),
    Variable("VGPUSIM_CONFIG", _SIMULATED, "The YAML file that describes the simulated GPUs."),
    Variable(
        "SLURM_CONF",
        _CLI,
        "The `slurm.conf` of `vgpurun slurm`, with `gres.conf` beside it; slurmd sets it for its hooks.",
    ),
    Variable(
        "SLURMD_NODENAME", _CLI, "This node's name in Slurm; slurmd sets it for its hooks. Without it, the host's name."
    ),
    Variable("VGPUSIM_STATE", _SIMULATED, "The file in which processes share the simulated GPUs."),
)
