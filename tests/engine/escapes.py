"""Ways past the preloaded library, for the walls that stand outside of the container: each is a command for a shell.

In them FILL is a Python program that takes memory, and PAST does the same by one of the programs of past.c, which have
the simulated driver in themselves and so come to the GPU by system calls alone.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

from cli import PROGRAMS
from support import CHECKOUT, one_at_a_time
from support.debian_packages import tool, unpacked

SOURCES = CHECKOUT / "lib" / "sim"
PROGRAMS_OF_SIM = ("nvml_", "nvidia_smi", "mps_control", "mps_server")  # and NVML: no parts of the driver
# A root in the container needs these to unmount our files, to trace, and to enter namespaces.
HOSTILE = ("--cap-add", "SYS_ADMIN", "--cap-add", "SYS_PTRACE", "--security-opt", "apparmor=unconfined",
           "--security-opt", "seccomp=unconfined")  # fmt: skip
# A file capability (CAP_CHOWN, version 2, effective), by which a program is one that LD_PRELOAD does not reach.
GRANT = (
    "python3 -c 'import os, struct, sys; "
    'os.setxattr(sys.argv[1], "security.capability", struct.pack("<5I", 0x02000001, 1, 0, 0, 0))\''
)
_BELOW = (
    "d=/sys/fs/cgroup; [ -e $d/cgroup.procs ] || d=$d/freezer; mount -o remount,bind,rw $d && mkdir $d/below && "
    "echo $$ >$d/below/cgroup.procs && umount /etc/ld.so.preload; FILL"
)
# By the driver's own functions, found past the library.
BY_FUNCTIONS = {
    "second copy of the driver": "ESCAPE copy WORK",
    "dlmopen": "ESCAPE namespace WORK",
    "raw export table": "ESCAPE table WORK",
    "auditor": "LD_AUDIT=PAST/audit.so FILL",
}
# By a program in which no library of ours is.
BY_PROGRAMS = {
    "loader of its own": "ESCAPE loader WORK",
    "loader of its own, once it is counted": "ESCAPE counted WORK",
    "traced loader": "ESCAPE traced WORK",
    "static program": "PAST/static WORK",
    "program of musl": "PAST/ld-musl PAST/musl WORK",
    "program in no file": "ESCAPE memfd WORK",
    "setuid static program": "cp PAST/static /bin/x; chmod 4755 /bin/x; su nobody -s /bin/sh -c '/bin/x WORK'",
    "program with a capability": f"cp PAST/static /bin/y; {GRANT} /bin/y; su nobody -s /bin/sh -c '/bin/y WORK'",
    "child that shares memory": "PAST/static child WORK",
    "daemon": "ESCAPE daemon-loader WORK </dev/null | cat",
}
# By a root with no right that docker's other containers lack.
BY_FOLDERS = {
    "renamed library": "mv /.vgpurun /away; export VGPUSIM_CONFIG=/away/etc/sim.yaml VGPUSIM_STATE=/away/sim.state "
    "LD_LIBRARY_PATH=/away/driver; FILL",
}
# By a root that may mount.
BY_MOUNTS = {
    "unmounted preload": "umount /etc/ld.so.preload; FILL",
    "emptied preload": "mount --bind /dev/null /etc/ld.so.preload; FILL",
    "unmounted library": "umount -l /.vgpurun/libvgpu.so; FILL",
    "hidden library": "mount --bind /dev/null /.vgpurun/libvgpu.so; FILL",
    "new mount namespace": "unshare -m sh -c 'umount /etc/ld.so.preload; umount /sys/fs/cgroup; umount -l /proc; FILL'",
    "new namespaces": "unshare -m -u -i -n -p -f -C sh -c 'umount /etc/ld.so.preload; FILL'",
    "new user namespace": "unshare -U -r -m sh -c 'mount -t tmpfs none /etc; FILL'",
    "new PID namespace": "unshare -p -f --mount-proc ESCAPE loader WORK",
    "nsenter": "unshare -m sh -c 'umount /etc/ld.so.preload; exec sleep 60' & "
    "while grep -q ld.so.preload /proc/$!/mounts; do sleep 0.05; done; nsenter -t $! -m FILL",
    "chroot": "mkdir /r; mount --rbind / /r; umount /r/etc/ld.so.preload; chroot /r FILL",
    "pivot_root": "unshare -m sh -c 'mkdir /r; mount --rbind / /r; umount /r/etc/ld.so.preload; cd /r; mkdir -p old; "
    "pivot_root . old; FILL'",
    "another user": "umount /etc/ld.so.preload; chmod 755 /root; su nobody -s /bin/sh -c 'FILL'",
    "a cgroup below": _BELOW,
}
PAST_THE_LIBRARY = BY_FUNCTIONS | BY_PROGRAMS | BY_FOLDERS | BY_MOUNTS


def command(escape: str, *work: str) -> list[str]:
    """Return what a container runs for this escape: `work` are the words behind WAY of programs/escape.py."""
    words = " ".join(work)
    python = "/usr/bin/python3 /programs/escape.py"
    text = escape.replace("FILL", f"{python} plain WORK").replace("ESCAPE", python).replace("PAST", "/past")
    return ["sh", "-c", text.replace("WORK", words)]


def by_nix_loader(*program: str) -> list[str]:
    """Return what starts a program by a loader that reads /etc/ld-nix.so.preload alone, by a link of the length that
    Debian's loader has room for.
    """
    script = (
        "ln -s /etc/ld-nix.so.preload /tmp/ld.so.preload; "
        "sed s,/etc/ld.so.preload,/tmp/ld.so.preload, /lib64/ld-linux-x86-64.so.2 >/tmp/loader; chmod +x /tmp/loader; "
        'exec /tmp/loader "$@"'
    )
    return ["sh", "-c", script, "sh", *program]


def past_programs() -> Path:
    """Return the folder with the programs of past.c and audit.c, for /past of a container; the former linked with musl.

    Raises UnavailableError where musl cannot be had.
    """
    compiler, musl = tool("musl-gcc", "musl-tools"), unpacked("musl")
    sources = [each for each in SOURCES.glob("*.c") if not each.name.startswith(PROGRAMS_OF_SIM)]
    newest_s = max(each.stat().st_mtime for each in (*PROGRAMS.glob("*.c"), Path(__file__), *SOURCES.iterdir()))
    with one_at_a_time(CHECKOUT / "lib" / "build" / "tests" / "past") as folder:
        if not (folder / "musl").exists() or (folder / "musl").stat().st_mtime < newest_s:
            headers = Path(sysconfig.get_path("purelib")).glob("nvidia/*/include/cuda.h")
            includes = [
                *(f"-I{each.parent}" for each in headers),
                "-iquote",
                str(SOURCES),
            ]  # they have a limits.h
            # The kernel's headers, which musl's package does not bring.
            includes += ["-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"]
            # For the driver alone: to a program this would give the functions of CUDA 1, whose memory is below 4 GiB.
            defined = ["-D_GNU_SOURCE", "-D__GLIBC_PREREQ(major, minor)=0", "-D__CUDA_API_VERSION_INTERNAL"]
            compile_one = [compiler, "-c", "-O1", "-w", *includes]
            subprocess.run([*compile_one, *defined, *sources], cwd=folder, check=True)
            subprocess.run([*compile_one, PROGRAMS / "past.c"], cwd=folder, check=True)
            compiled = [f"{each.stem}.o" for each in (*sources, PROGRAMS / "past.c")]
            subprocess.run([compiler, "-static", "-o", "static", *compiled], cwd=folder, check=True)
            shutil.copy(musl / "lib/ld-musl-x86_64.so.1", folder / "ld-musl")
            subprocess.run(["cc", "-shared", "-fPIC", "-o", "audit.so", PROGRAMS / "audit.c"], cwd=folder, check=True)
            subprocess.run([compiler, "-o", "musl", *compiled], cwd=folder, check=True)
        return folder
