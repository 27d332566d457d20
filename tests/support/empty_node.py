"""A node before anything of vgpurun's comes to it: a machine of its own with simulated GPUs, and with their driver."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import CHECKOUT, LIBRARY
from support.debian_packages import UnavailableError
from support.own_machine import OwnMachine, own_machine

_SETUP = """
set -e
for folder in /node /opt/{{ray,vgpurun}} /etc/{{cdi,tmpfiles.d,vgpurun}} /var/lib/{{kubelet,vgpurun}} /var/tmp; do
  mkdir -p $folder
  mount -t tmpfs -o mode=755 tmpfs $folder
done
chmod 1777 /var/tmp
rm -rf /.vgpurun /etc/ld.so.preload /usr/local/bin/vgpurun
hostname node
echo '127.0.0.1 localhost node' >/etc/hosts
rm -f /etc/resolv.conf # no server could be reached, and each would be waited for
{python} {checkout}/tests/support/lone_network.py
cp {driver}/lib*.so.1 /usr/lib/$(uname -m)-linux-gnu
cp {driver}/nvidia-smi /usr/bin
printf %s {gpus} >/node/gpus.yaml
touch /node/gpus.state
echo ready
cat >/dev/null # ends with the process that started this, however that ends
exit # the shell stays till then, since it waits for what others leave behind
"""


@contextmanager
def empty_node(gpus: str, programs: str, **variables: str) -> Iterator[OwnMachine]:
    """Run one; nothing of it stays. `gpus` is what VGPUSIM_CONFIG names, `programs` goes before the PATH.

    Its files are the tests' own below /node, which is its HOME; what is in /opt/ray, /opt/vgpurun, /var/lib/vgpurun and
    /var/tmp is not this machine's. Raises UnavailableError.
    """
    if os.geteuid() != 0:
        raise UnavailableError("only root can make a machine of its own")
    setup = _SETUP.format(
        python=shlex.quote(sys.executable), checkout=CHECKOUT, driver=LIBRARY.parent / "sim", gpus=shlex.quote(gpus)
    )
    simulated = {"VGPURUN_DRIVER": "sim", "VGPUSIM_CONFIG": "/node/gpus.yaml", "VGPUSIM_STATE": "/node/gpus.state"}
    with (
        tempfile.TemporaryDirectory() as nothing,
        own_machine(Path(nothing), "under", [CHECKOUT], "bash", "-c", setup) as pid,
    ):
        path = f"{programs}:/usr/bin:/usr/sbin:/bin"
        yield OwnMachine(pid, PATH=path, HOME="/node", **simulated, **variables)
