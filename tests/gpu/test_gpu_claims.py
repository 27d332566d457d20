"""The DRA plugin on a real GPU: what it publishes, and that a claim's limits are what a container sees."""

from __future__ import annotations

import tempfile
from pathlib import Path

import docker
import pytest

from vgpurun.host import gpus

# The plugin needs the one, the double of the API server both: pip install '.[dev]'.
pytest.importorskip("kubernetes.config")
pytest.importorskip("kubernetes_validate")

from api_server import ApiServer
from claim_maker import result
from dra_host import DRIVER, PluginHost


@pytest.mark.parametrize("memory_mib", [2048, 5000])
def test_a_container_with_a_claim_sees_its_part_of_the_gpu(
    built_library: Path, engine: docker.DockerClient, cdi_folder: Path, glibc_image: str, memory_mib: int
) -> None:
    with ApiServer().running() as server, tempfile.TemporaryDirectory(prefix="dra-", dir="/tmp") as folder:
        host = PluginHost(Path(folder), server, cdi=cdi_folder)
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
                seen = engine.containers.run(
                    glibc_image,
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
