"""The errors that a user sees. Each carries its exit code; its message names the input and the next step.

Exit codes are Docker's: 1 when the engine cannot be reached, 125 when vgpurun itself fails otherwise, 126 when the
command cannot be executed, 127 when it is not found; else the command's own code.
"""

from collections.abc import Sequence


class VgpurunError(Exception):
    """vgpurun itself failed, before or instead of the command. The message is one line for the user."""

    exit_code = 125


class LimitError(VgpurunError):
    """A memory or compute limit that cannot be read, or that no chosen GPU can have."""


class NoRoomError(VgpurunError):
    """There is no room for the launch now. `details` are lines for the user: who holds what.

    `gpus` are the UUIDs of those that lack room, None for all that would do; of the others the user has had enough.
    """

    def __init__(self, reason: str, way_out: str, details: str = "", gpus: Sequence[str] | None = None) -> None:
        super().__init__(f"{reason}; {way_out}")
        self.reason = reason
        self.way_out = way_out
        self.details = details
        self.gpus = gpus


class QuotaError(VgpurunError):
    """The launch would pass what the administrator grants its user."""


class ConfigError(VgpurunError):
    """A configuration file that cannot be used; the message names the file and the line."""


class OptionError(VgpurunError):
    """Another option's value that cannot be used."""


class CommandLineError(OptionError):
    """A command line that docker refuses with another exit code than most."""

    exit_code = 1


class GpuError(VgpurunError):
    """No driver, no GPU, or not the GPU that was asked for."""


class NoDriverError(GpuError):
    """NVML does not start."""


class DriverError(VgpurunError):
    """The driver's files cannot be brought into the container in the way that was asked for."""


class EnforceError(VgpurunError):
    """The driver has no memory limits of its own here, or refuses one."""


class EngineError(VgpurunError):
    """The Docker Engine cannot be reached, or refused something."""


class UnreachableEngineError(EngineError):
    """No request can get to the Docker Engine."""

    exit_code = 1


class NoEngineError(UnreachableEngineError):
    """There is no Docker Engine at its address."""


class ContainerError(VgpurunError):
    """No such container, or the engine refused something about one; the words and the exit code are docker's."""

    exit_code = 1


class SuspendError(VgpurunError):
    """Processes that cannot be taken off their GPUs, or not be brought back."""


class OthersProcessError(SuspendError):
    """Processes that are another user's, so that it takes root."""


class ImageError(VgpurunError):
    """The image is missing, or its C library cannot load libvgpu.so."""


class PullError(ImageError):
    """The image is not here, and cannot be pulled."""


class SliceError(VgpurunError):
    """No such slice, or one that cannot be made, joined or removed."""


class TogetherError(VgpurunError):
    """Programs that cannot share the GPU in space here, or have no server for it."""


class ComposeError(VgpurunError):
    """A Compose file that cannot be read, or not be rewritten."""


class LibraryError(VgpurunError):
    """libvgpu.so is missing, cannot be built, or is not the one that this vgpurun needs."""


class ExtraError(VgpurunError):
    """A package of an optional extra is not installed."""


class CgroupError(VgpurunError):
    """A cgroup that is gone, or that this user may not change."""


class ChannelError(VgpurunError):
    """A process's work cannot be taken off its GPUs, or put back: it has ended, or the driver does not do it."""


class GuardError(VgpurunError):
    """The guard cannot run, or cannot do what was asked of it."""


class HistoryError(VgpurunError):
    """The file of past use cannot be opened, read or written."""


class StateError(VgpurunError):
    """The state folder cannot be made or written."""


class ProfileError(VgpurunError):
    """A profile, or a folder for profiles, that cannot be used."""


class ClaimError(VgpurunError):
    """A resource claim of Kubernetes that this node cannot give a GPU to; kubelet shows the message at its pod."""


class ClusterError(VgpurunError):
    """Kubernetes' API server cannot be reached, refused something, or lacks a feature that is needed."""


class KubernetesError(VgpurunError):
    """Kubelet cannot be spoken with, or a part that is needed for it is missing."""


class SlurmError(VgpurunError):
    """Slurm does not answer, is set up in a way that cannot work, or has given a job what this node does not have."""


class OutputError(VgpurunError):
    """The command's output cannot be written."""


class CommandNotExecutableError(VgpurunError):
    """The command, or a file that the container needs, is there but cannot be used."""

    exit_code = 126


class CommandNotFoundError(VgpurunError):
    """The command, or a file or device that the container needs, does not exist."""

    exit_code = 127
