"""The plan of a launch: what a container gets, as data."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes import GIB, make_gpus

import vgpurun
from vgpurun import abi
from vgpurun.admission.placement import Placement
from vgpurun.cli.commands.smi import of_chosen_gpus
from vgpurun.engine.image_libc import Libc
from vgpurun.errors import GpuError, LimitError, OptionError
from vgpurun.host.drivers import DriverPlan, EngineFacts, plan_driver
from vgpurun.host.program import Doubts
from vgpurun.launch.describe import to_yaml
from vgpurun.launch.plan import HostFacts, ImageFacts, LaunchPlan, plan_launch, plan_process, warnings_of_program
from vgpurun.limits.model import Limits, quotas_from_json
from vgpurun.limits.quota import Quota
from vgpurun.options import ContainerOptions, Mount, Volume
from vgpurun.options.mount_targets import path_on_host
from vgpurun.storage import tenants

LIBRARY = Path("/lib/libvgpu.so")
STATE = Path("/state/containers/x")
TENANT = tenants.folder_of(STATE).name
DRIVER = DriverPlan(
    "mount",
    libraries={"libcuda.so.1": "/host/libcuda.so.580"},
    tools={"nvidia-smi": "/host/bin/nvidia-smi"},
    devices=("/dev/nvidia10", "/dev/nvidiactl"),
    environment={"NVIDIA_VISIBLE_DEVICES": "void", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"},
    has_hwcaps=True,
)
DEBIAN_12, RED_HAT_8 = Libc("/usr/lib/x86_64-linux-gnu", (2, 36)), Libc("/usr/lib64", (2, 28))
FIRST = {
    f"{place}/{kind}"
    for place in (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64")
    for kind in ("glibc-hwcaps/x86-64-v2", "tls")
}


def plan(
    memory: str | None = None,
    sm: str | None = None,
    *,
    gpus: int = 2,
    image: dict[str, str] | None = None,
    host: dict[str, str] | None = None,
    on_host: tuple[str, ...] = (),
    libc: Libc | None = DEBIAN_12,
    driver: DriverPlan = DRIVER,
    **options: Any,
) -> LaunchPlan:
    return plan_launch(
        ContainerOptions("image", **options),
        Placement(tuple(make_gpus(gpus)), Limits.read(memory, sm)),
        driver,
        LIBRARY,
        STATE,
        ImageFacts(image or {}, libc),
        HostFacts(host or {}, on_host.__contains__, lambda _: True),
    )


def targets(launch: LaunchPlan) -> dict[str, tuple[str | None, bool]]:
    return {mount.target: (mount.source, mount.read_only) for mount in launch.mounts}


def test_what_every_container_gets() -> None:
    assert targets(plan("2g")) == {
        "/.vgpurun/libvgpu.so": ("/lib/libvgpu.so", True),
        "/.vgpurun/etc": ("/state/containers/x/etc", True),
        "/.vgpurun/run/usage": ("/state/containers/x/run/usage", False),
        "/etc/ld.so.preload": ("/state/containers/x/etc/ld.so.preload", True),
        "/etc/ld-nix.so.preload": ("/state/containers/x/etc/ld.so.preload", True),
        "/.vgpurun/tenants": ("/var/tmp/vgpulock", True),
        "/.vgpurun/run/presence": (f"/var/tmp/vgpulock/{TENANT}/presence1", False),
        "/.vgpurun/driver/libcuda.so.1": ("/host/libcuda.so.580", True),
        "/usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v2": ("/state/containers/x/driver", True),
        "/usr/bin/nvidia-smi": ("/host/bin/nvidia-smi", True),
    }
    assert plan().state_links == {"driver/libcuda.so.1": "/.vgpurun/driver/libcuda.so.1"}
    assert plan().devices == ("/dev/nvidia10", "/dev/nvidiactl")
    assert plan().warnings == ()


@pytest.mark.parametrize(
    ("libc", "folders"),
    [
        (DEBIAN_12, {"/usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v2"}),
        (RED_HAT_8, {"/usr/lib64/tls"}),
        (Libc("/usr/lib64", (2, 33)), {"/usr/lib64/glibc-hwcaps/x86-64-v2"}),
        (None, FIRST),
    ],
)
def test_a_driver_is_where_the_loader_looks_first(libc: Libc | None, folders: set[str]) -> None:
    launch = plan(libc=libc)
    assert {target for target in targets(launch) if target.endswith(("v2", "tls"))} == folders
    assert not {"LD_PRELOAD", "LD_LIBRARY_PATH", "PATH"} & set(launch.environment)


def test_a_driver_that_the_image_has_beside_its_c_library_is_hidden() -> None:
    own = ("/lib/x86_64-linux-gnu/libcuda.so.1", "/lib/x86_64-linux-gnu/libnvidia-of-another.so.1")
    launch = plan(libc=replace(DEBIAN_12, driver=own))
    assert targets(launch)[own[0]] == ("/host/libcuda.so.580", True)
    assert own[1] not in targets(launch)
    mine = Volume("/data", "/lib/x86_64-linux-gnu", "rw")
    assert own[0] not in targets(plan(libc=replace(DEBIAN_12, driver=own), volumes=(mine,)))


def test_a_folder_of_the_drivers_own_is_mounted_as_it_is() -> None:
    launch = plan(driver=replace(DRIVER, folder="/sim"))
    assert targets(launch)["/usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v2"] == ("/sim", True)
    assert not launch.state_links and not [
        target for target in targets(launch) if target.startswith("/.vgpurun/driver")
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"driver": replace(DRIVER, folder="/sim", has_hwcaps=False)},
        {"driver": replace(DRIVER, folder="/sim"), "libc": Libc("")},
        {"driver": replace(DRIVER, folder="/sim"), "volumes": (Volume("/usr", "/usr", "ro"),)},
    ],
    ids=["another processor", "another loader", "no place"],
)
def test_where_no_loader_looks_first_a_variable_says_it(settings: dict[str, Any]) -> None:
    launch = plan(image={"LD_LIBRARY_PATH": "/usr/local/nvidia/lib"}, **settings)
    assert launch.environment["LD_LIBRARY_PATH"] == "/.vgpurun/driver:/usr/local/nvidia/lib"
    assert targets(launch)["/.vgpurun/driver"] == ("/sim", True)


def test_no_variable_names_the_library_where_each_loader_has_its_file() -> None:
    assert "LD_PRELOAD" not in plan(libc=Libc("")).environment


def test_limits_are_in_the_file_alone() -> None:
    launch = plan("0=2g", "1=50")
    assert not [name for name in launch.environment if "_LIMIT" in name or "CACHE" in name]
    file = abi.Limits.from_buffer_copy(launch.state_files["etc/limits"])
    assert [(d.uuid.decode(), d.memory_limit_bytes, d.sm_limit_percent) for d in file.devices[:2]] == [
        (make_gpus(2)[0].uuid, 2 * GIB, abi.NO_SM_LIMIT),
        (make_gpus(2)[1].uuid, abi.NO_MEMORY_LIMIT, 50),
    ]
    assert launch.state_files["etc/ld.so.preload"] == b"/.vgpurun/libvgpu.so\n"


def test_what_an_image_preloads_itself_comes_after_ours() -> None:
    launch = plan(libc=replace(DEBIAN_12, preload="libm.so.6\n"))
    assert launch.state_files["etc/ld.so.preload"] == b"/.vgpurun/libvgpu.so\nlibm.so.6\n"


def test_without_limits_the_same_is_mounted() -> None:
    assert targets(plan()) == targets(plan("1g"))


def test_the_library_is_told_which_variables_are_in_the_file_already() -> None:
    """So one that is set inside later is known, and one of the launch does not outlive a change of the limits."""
    assert abi.ENV_LIMITS_TAKEN not in plan("1g").environment
    given = {"CUDA_DEVICE_MEMORY_LIMIT": "2g", "CUDA_DEVICE_SM_LIMIT": ""}
    taken = plan(image={"ALNAIR_VGPU_COMPUTE_PERCENTILE": "50"}, environment=given).environment[abi.ENV_LIMITS_TAKEN]
    assert taken == "CUDA_DEVICE_MEMORY_LIMIT=2g;ALNAIR_VGPU_COMPUTE_PERCENTILE=50"
    committed = {abi.ENV_LIMITS_TAKEN: taken}
    assert plan(image=committed).environment[abi.ENV_LIMITS_TAKEN] is None


def test_the_image_may_set_limits_and_the_user_overrides_them() -> None:
    assert plan(image={"CUDA_DEVICE_MEMORY_LIMIT": "1g"}).quotas[0].quota == Quota(GIB)
    launch = plan(image={"CUDA_DEVICE_MEMORY_LIMIT": "1g"}, environment={"CUDA_DEVICE_MEMORY_LIMIT": "2g"})
    assert launch.quotas[0].quota == Quota(2 * GIB)
    with pytest.raises(LimitError):
        plan(image={"CUDA_DEVICE_MEMORY_LIMIT": "much"})


def test_the_users_variables_are_kept_as_they_are() -> None:
    given = {"A": "1", "LD_PRELOAD": "/mine.so", "LD_LIBRARY_PATH": "/mine", "PATH": "/bin"}
    launch = plan(environment=given, image={"LD_PRELOAD": "/image.so", "B": "2"})
    assert {name: launch.environment.get(name) for name in (*given, "B")} == {**given, "B": None}
    assert "B" not in launch.environment, "the image sets it by itself"


def test_what_a_launch_had_set_in_an_image_is_taken_away() -> None:
    image = {
        "LD_PRELOAD": "/.vgpurun/libvgpu.so:/.vgpurun/libvgpu.so:/image.so",
        "LD_LIBRARY_PATH": "/.vgpurun/driver",
        "PATH": "/bin:/.vgpurun/driver",
        "PFLOG": "/.vgpurun/profile",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/.vgpurun/run/usage",
        "CUDA_DEVICE_MEMORY_LIMIT_0": str(GIB),
        "CUDA_DEVICE_SM_LIMIT_1": "30",
        "CUDA_DEVICE_MEMORY_LIMIT": "3g",
        "EMPTY": "",
        "URL": "https://x:80/.vgpurun/",
    }
    launch = plan("4g", "80", image=image)
    assert [each.quota for each in launch.quotas] == [Quota(3 * GIB, 80)] * 2
    taken_away = ("LD_LIBRARY_PATH", "PFLOG", "CUDA_DEVICE_MEMORY_SHARED_CACHE")
    limits = ("CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT_1")
    healed = dict.fromkeys((*taken_away, *limits))
    assert {name: value for name, value in launch.environment.items() if not name.startswith("NVIDIA_")} == {
        **healed, "LD_PRELOAD": "/image.so", "PATH": "/bin", abi.ENV_LIMITS_TAKEN: "CUDA_DEVICE_MEMORY_LIMIT=3g",
    }  # fmt: skip


def test_limits_that_no_launch_had_set_stay() -> None:
    image = {"CUDA_DEVICE_MEMORY_LIMIT_0": str(GIB), "CUDA_DEVICE_SM_LIMIT_0": "30"}
    assert plan("4g", "80", gpus=1, image=image).quotas[0].quota == Quota(GIB, 30)
    ours = {**image, "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/.vgpurun/run/usage"}
    given = {"CUDA_DEVICE_MEMORY_LIMIT_0": "2g"}
    assert plan("4g", "80", gpus=1, image=ours, environment=given).quotas[0].quota == Quota(2 * GIB, 80)


def test_which_gpus_there_are_is_not_the_environments_to_say() -> None:
    launch = plan(environment={"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "all"})
    assert launch.environment["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert launch.environment["NVIDIA_DRIVER_CAPABILITIES"] == "all"


def test_the_log_level_comes_from_the_user_or_else_the_host() -> None:
    host = {"LIBCUDA_LOG_LEVEL": "4", "OTHER": "x"}
    assert plan(host=host).environment["LIBCUDA_LOG_LEVEL"] == "4"
    assert plan(host=host, environment={"LIBCUDA_LOG_LEVEL": "0"}).environment["LIBCUDA_LOG_LEVEL"] == "0"
    assert "OTHER" not in plan(host=host).environment
    assert "LIBCUDA_LOG_LEVEL" not in plan().environment


def test_one_short_label_and_the_rest_in_the_state_folder() -> None:
    launch = plan("2g", labels={"team": "vision"})
    assert launch.labels == {"team": "vision", "vgpurun.state": STATE.name}
    assert launch.owner["version"] == vgpurun.__version__
    assert json.loads(launch.owner["quota"])[1] == {
        "uuid": make_gpus(2)[1].uuid,
        "memory_bytes": 2 * GIB,
        "guaranteed_bytes": None,
        "virtual_bytes": None,
        "sm_percent": None,
        "sm_policy": "hard",
        "priority": "high",
        "swap": False,
        "together": False,
        "sms_percent": None,
    }
    assert quotas_from_json(launch.owner["quota"])[0] == (make_gpus(2)[0].uuid, Quota(2 * GIB))


@pytest.mark.parametrize("text", ["", "null", "{}", "[1]", '[{"uuid": "x"}]', '{"a": 1}', "[" * 100_000])
def test_a_text_that_is_no_quota(text: str) -> None:
    assert quotas_from_json(text) == []


def test_more_gpus_than_the_limits_file_holds() -> None:
    assert len(plan(gpus=32).quotas) == 32
    with pytest.raises(GpuError, match="33 GPUs"):
        plan(gpus=33)


@pytest.mark.parametrize(
    "target", ["/etc/ld.so.preload", "/etc/ld-nix.so.preload", "/.vgpurun", "/.vgpurun/etc", "/.vgpurun/x", "/"]
)
def test_a_mount_over_what_limits_the_container_is_refused(target: str) -> None:
    with pytest.raises(OptionError, match="limits the container"):
        plan(volumes=(Volume("/data", target),))
    with pytest.raises(OptionError, match="limits the container"):
        plan(mounts=(Mount("/data", target),))


@pytest.mark.parametrize(
    ("quota", "is_driver_held", "words"),
    [
        (Quota(GIB), False, "no limit holds"),
        (Quota(None, 50), False, "no limit holds"),
        (Quota(GIB, 50), True, "no compute limit holds"),
        (Quota(GIB), True, ""),
        (Quota(), False, ""),
    ],
)
def test_which_limits_do_not_hold_without_the_library(quota: Quota, is_driver_held: bool, words: str) -> None:
    said = list(warnings_of_program(Doubts("/p is linked statically"), [quota], is_driver_held, {}))
    assert [f"not loaded into it, and {words} for it" in each for each in said] == [True] * bool(words)
    assert not list(warnings_of_program(Doubts(), [quota], is_driver_held, {}))


def test_a_program_that_does_not_start_is_told_its_way_out() -> None:
    doubts = Doubts(refuses="/p is built with AddressSanitizer")
    (said,) = warnings_of_program(doubts, [Quota(GIB)], False, {"ASAN_OPTIONS": "verbosity=1"})
    assert said.endswith("with -e ASAN_OPTIONS=verify_asan_link_order=0 it starts")
    assert not list(warnings_of_program(doubts, [Quota(GIB)], False, {"ASAN_OPTIONS": "verify_asan_link_order=0"}))


def test_in_a_folder_of_the_users_only_what_is_there_is_mounted_over() -> None:
    usr, place = Volume("/usr", "/usr", "ro"), "/usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v2"
    assert place not in targets(plan(volumes=(usr,)))
    assert place in targets(plan(volumes=(usr,), on_host=(place,)))
    assert plan("1g", volumes=(usr,)).warnings == ()


def test_no_place_for_the_preload_file_is_a_warning() -> None:
    etc = Volume("/data/etc", "/etc", "ro")
    launch = plan("1g", volumes=(etc,), image={"LD_PRELOAD": "/image.so"})
    assert "/etc/ld.so.preload" not in targets(launch)
    assert launch.environment["LD_PRELOAD"] == "/.vgpurun/libvgpu.so:/image.so"
    assert "env -i" in launch.warnings[0]
    assert plan(volumes=(etc,)).warnings == (), "without a limit there is nothing to warn about"
    launch = plan("1g", volumes=(etc,), on_host=("/data/etc/ld.so.preload",))
    assert "/etc/ld.so.preload" in targets(launch)
    assert launch.warnings == ()


def test_docker_s_memory_is_none_of_the_gpu() -> None:
    memory = {"HostConfig.Memory": 2 * GIB}
    (warning,) = plan(fields=memory).warnings
    assert "--memory limits the host's memory" in warning and warning.endswith("--mem")
    for limited in (
        plan("1g", fields=memory),
        plan(sm="50", fields=memory),
        plan(image={"CUDA_DEVICE_MEMORY_LIMIT": "1g"}, fields=memory),
    ):
        assert limited.warnings == (), "whoever limits the GPU has found the option"


def test_in_a_volume_or_tmpfs_the_engine_makes_the_place() -> None:
    for mount in (Mount(None, "/tmp", False, "tmpfs"), Mount("name", "/etc", False, "volume")):
        assert "/etc/ld.so.preload" in targets(plan(mounts=(mount,)))
    assert plan("1g", mounts=(Mount("name", "/etc", True, "volume"),)).warnings


def test_where_a_target_lies_on_the_host() -> None:
    options = ContainerOptions("image", volumes=(Volume("/data", "/usr"), Volume("name", "/opt")))
    assert path_on_host("/usr/lib/x", options) == "/data/lib/x"
    assert path_on_host("/usr", options) == "/data"
    assert path_on_host("/usrx", options) is None
    assert path_on_host("/opt/x", options) is None


def test_the_innermost_mount_counts() -> None:
    mounts = (Volume("/a", "/usr"), Volume("/b", "/usr/lib64"))
    assert "/usr/lib64/tls" in targets(plan(libc=RED_HAT_8, volumes=mounts, on_host=("/b/tls",)))
    assert "/usr/lib64/tls" not in targets(plan(libc=RED_HAT_8, volumes=mounts, on_host=("/a/lib64/tls",)))


def test_what_the_engine_injects() -> None:
    gpus = make_gpus(2, first_index=1)
    cdi = plan_driver("auto", gpus, EngineFacts(cdi_devices=frozenset({"nvidia.com/gpu=1", "nvidia.com/gpu=2"})))
    placement = Placement(tuple(gpus), Limits())
    launch = plan_launch(ContainerOptions("image"), placement, cdi, LIBRARY, STATE, ImageFacts(), HostFacts({}))
    assert launch.driver == "cdi"
    assert [(r.driver, r.device_ids) for r in launch.device_requests] == [
        ("cdi", ("nvidia.com/gpu=1", "nvidia.com/gpu=2"))
    ]
    assert launch.devices == ()


def test_dry_run_is_yaml_that_says_all_and_leaves_out_what_is_empty() -> None:
    launch = plan("2g", "50", volumes=(Volume("/data", "/data", "ro"),), command=("python", "train.py"))
    shown = yaml.safe_load(to_yaml(launch))
    assert shown["command"] == ["python", "train.py"]
    assert shown["gpus"][0]["memory_limit"] == f"{2 * GIB} (2 GiB)"
    assert shown["gpus"][0]["sm_limit"] == "50%"
    assert shown["volumes"] == ["/data:/data:ro"]
    assert "/lib/libvgpu.so:/.vgpurun/libvgpu.so:ro" in shown["mounts"]
    assert shown["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert {"entrypoint", "ports", "device_requests"}.isdisjoint(shown)


def local(chosen: slice, memory: str | None = None, host: dict[str, str] | None = None) -> Any:
    placement = Placement(tuple(make_gpus(3)[chosen]), Limits.read(memory))
    return plan_process(("true",), placement, len(placement.gpus) < 3, "host", {}, LIBRARY, STATE, host or {})


def test_a_local_process_sees_the_hosts_indexes_and_its_own_files() -> None:
    process = local(slice(1, 2), "1g", {"LD_PRELOAD": "/mine.so"})
    assert process.environment == {
        "CUDA_DEVICE_MEMORY_LIMIT_1": str(GIB),
        "LD_PRELOAD": "/lib/libvgpu.so:/mine.so",
        "VGPURUN_LIMITS_FILE": "/state/containers/x/etc/limits",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/state/containers/x/run/usage",
        "VGPURUN_PRESENCE_FILE": f"/var/tmp/vgpulock/{TENANT}/presence1",
        "CUDA_VISIBLE_DEVICES": make_gpus(3)[1].uuid,
    }
    assert abi.Limits.from_buffer_copy(process.state_files["etc/limits"]).device_count == 1


def test_nvidia_smi_is_told_the_chosen_gpus_where_they_are_not_all() -> None:
    assert of_chosen_gpus(local(slice(None))).command == ("true",)
    assert of_chosen_gpus(local(slice(0, 1))).command == ("true", "-i", make_gpus(1)[0].uuid)


def test_a_local_process_with_all_gpus_keeps_its_choice_of_devices() -> None:
    assert "CUDA_VISIBLE_DEVICES" not in local(slice(None)).environment
    assert local(slice(None), host={"CUDA_DEVICE_MEMORY_LIMIT_2": "1g"}).quotas[2].quota == Quota(GIB)
    assert "gpus" in yaml.safe_load(to_yaml(local(slice(None))))
