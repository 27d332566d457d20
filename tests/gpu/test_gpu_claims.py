"""The DRA plugin on a real GPU: what it publishes, and that a claim's limits are what a container sees."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from support import unavailable
from vgpurun.host import gpus

pytest.importorskip("kubernetes_validate", reason="the double of the API server needs it: pip install '.[dev]'")

from test_gpu_slices import c_library

from api_server import ApiServer
from claim_maker import result
from dra_host import DRIVER, PluginHost

IMAGE = "vgpurun-test/claims:1"


@pytest.mark.parametrize("memory_mib", [2048, 5000])
def test_a_container_with_a_claim_sees_its_part_of_the_gpu(built_library: Path, memory_mib: int) -> None:
    import docker

    try:
        client = docker.from_env()
        folders = client.info().get("CDISpecDirs")
    except docker.errors.DockerException:
        unavailable("no Docker Engine answers")
    if not folders:
        unavailable("this engine has no CDI")
    repository, tag = IMAGE.split(":")
    client.api.import_image_from_data(c_library(), repository=repository, tag=tag)
    with ApiServer().running() as server, tempfile.TemporaryDirectory(prefix="dra-", dir="/tmp") as folder:
        host = PluginHost(Path(folder), server, cdi=Path(folders[0]))
        with host.running("--driver", "mount"), host.kubelet.plugin(DRIVER) as plugin:
            (found,) = server.slices.values()
            first = found["spec"]["devices"][0]
            gpu = gpus.list_gpus()[0]
            assert first["attributes"]["uuid"] == {"string": gpu.uuid}
            print({name: next(iter(value.values())) for name, value in first["attributes"].items()})
            made = host.add(result(first["name"], f"{memory_mib}Mi", "50"))
            uid = made["metadata"]["uid"]
            answer = plugin.prepare(made)[uid]
            assert not answer.error, answer.error
            try:
                seen = client.containers.run(
                    IMAGE,
                    ["/usr/bin/nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
                    device_requests=[
                        docker.types.DeviceRequest(driver="cdi", device_ids=list(answer.devices[0].cdi_device_ids))
                    ],
                    network_mode="none",
                    remove=True,
                )
                assert seen.split() == [str(memory_mib).encode()]
            finally:
                assert plugin.unprepare(made) == {uid: ""}
                client.images.remove(IMAGE, force=True)
