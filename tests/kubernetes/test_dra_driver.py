"""Claims are prepared and given back on a node whose API server answers over HTTP."""

from __future__ import annotations

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from api_server import ApiServer
from claim_maker import claim, parameters, result
from claim_node import GPUS, ClaimNode, named
from vgpurun.errors import ClaimError, ClusterError, StateError
from vgpurun.kubernetes.dra.claim import ClaimName
from vgpurun.kubernetes.dra.cluster import Cluster
from vgpurun.kubernetes.dra.driver import each_on_its_own
from vgpurun.kubernetes.dra.model import device_name
from vgpurun.limits.limits_file import read_limits
from vgpurun.limits.policies import Priority, SmPolicy
from vgpurun.limits.quota import Quota
from vgpurun.storage import state, tenants, unchanged

GIB = 1 << 30


@pytest.fixture
def node(server: ApiServer, tmp_path: Path) -> ClaimNode:
    return ClaimNode(tmp_path / "node", Cluster(server.kubeconfig(tmp_path)))


def add(server: ApiServer, *results: dict[str, Any], name: str = "share", **fields: Any) -> dict[str, Any]:
    made = claim(*results, name=name, **fields)
    server.add_claim(made)
    return made


class TestPrepare:
    def test_a_claim_gets_its_limits_and_a_device(self, server: ApiServer, node: ClaimNode) -> None:
        part = result(GPUS[1], "2Gi", "30")
        made = add(server, part, config=(parameters(smPolicy="burst", priority="low"),))
        uid = made["metadata"]["uid"]
        (device,) = node.driver().prepare(named(made))
        assert device.part == ("gpu", "node-a", device_name(GPUS[1]), part["shareID"])
        assert device.cdi_name == f"vgpurun.io/claim={uid}-{device_name(GPUS[1])}"
        quota = Quota(2 * GIB, 30, SmPolicy.BURST, Priority.LOW)
        assert read_limits(node.root / "claims" / uid / "etc/limits") == [(GPUS[1].uuid, quota)]
        specification = node.specification(uid)
        assert specification["kind"] == "vgpurun.io/claim"
        assert [each["name"] for each in specification["devices"]] == [f"{uid}-{device_name(GPUS[1])}"]
        assert {"path": "/dev/nvidia1"} in specification["devices"][0]["containerEdits"]["deviceNodes"]
        mounted = {each["containerPath"]: each["hostPath"] for each in specification["containerEdits"]["mounts"]}
        assert mounted["/.vgpurun/libvgpu.so"] == "/lib/libvgpu.so"
        assert mounted["/.vgpurun/etc"] == str(node.root / "claims" / uid / "etc")
        assert "NVIDIA_GPU_MEMORY_LIMIT=2048" in specification["containerEdits"]["env"]

    def test_a_device_of_several_has_its_own_node_alone(self, server: ApiServer, node: ClaimNode) -> None:
        made = add(server, result(GPUS[0], request="a"), result(GPUS[2], request="b"))
        uid = made["metadata"]["uid"]
        devices = node.driver().prepare(named(made))
        assert [(each.part.request, each.part.device) for each in devices] == [
            ("a", device_name(GPUS[0])),
            ("b", device_name(GPUS[2])),
        ]
        specification = node.specification(uid)
        assert {each["name"]: each["containerEdits"] for each in specification["devices"]} == {
            f"{uid}-{device_name(GPUS[0])}": {"deviceNodes": [{"path": "/dev/nvidia0"}]},
            f"{uid}-{device_name(GPUS[2])}": {"deviceNodes": [{"path": "/dev/nvidia2"}]},
        }
        common = specification["containerEdits"]
        assert {"path": "/dev/nvidiactl"} in common["deviceNodes"]
        targets = [each["containerPath"] for each in common["mounts"]]
        assert "/usr/lib64/libcuda.so.1" in targets
        assert len(targets) == len(set(targets))

    def test_every_share_of_a_gpu_is_told_of(self, server: ApiServer, node: ClaimNode) -> None:
        parts = [result(GPUS[0], "1Gi"), result(GPUS[0], "1Gi"), result(GPUS[0], "1Gi", request="b")]
        devices = node.driver().prepare(named(add(server, *parts)))
        assert [(each.part.request, each.part.share_id) for each in devices] == [
            (each["request"], each["shareID"]) for each in parts
        ]
        assert len({each.cdi_name for each in devices}) == 1

    def test_a_gpu_with_a_fault_is_not_given(self, server: ApiServer, node: ClaimNode) -> None:
        node.faults[GPUS[0].uuid] = "the driver has reported XID 79"
        with pytest.raises(ClaimError, match="has GPU 0, which cannot be used: the driver has reported XID 79"):
            node.driver().prepare(named(add(server, result(GPUS[0]), name="faulty")))
        assert node.left() == set()
        node.driver().prepare(named(add(server, result(GPUS[1]), name="sound")))

    def test_again_it_gives_the_same_without_the_api_server(self, server: ApiServer, node: ClaimNode) -> None:
        made = add(server, result(GPUS[0]))
        first = node.driver().prepare(named(made))
        usage = (node.root / "claims" / made["metadata"]["uid"] / "run/usage").stat()
        server.claims.clear()
        assert node.driver().prepare(named(made)) == first
        again = (node.root / "claims" / made["metadata"]["uid"] / "run/usage").stat()
        assert (again.st_ino, again.st_mtime_ns) == (usage.st_ino, usage.st_mtime_ns)

    def test_one_that_cannot_be_looked_at_keeps_no_other_away(
        self, server: ApiServer, node: ClaimNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folders = {}
        for name in ("one", "other", "third"):
            made = add(server, result(GPUS[0], "1Gi"), name=name)
            node.driver().prepare(named(made))
            folders[tenants.folder_of(node.root / "claims" / made["metadata"]["uid"])] = made
        _, broken, _ = sorted(folders, key=lambda each: folders[each]["metadata"]["uid"])
        for each in folders:
            shutil.rmtree(each)
        is_made = tenants._is_made

        def is_made_but_for_one(place: Path) -> bool:
            if place == broken:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return is_made(place)

        monkeypatch.setattr(tenants, "_is_made", is_made_but_for_one)
        with pytest.raises(StateError, match=f"cannot make {broken}: Input/output error"):
            node.driver().restore_tenants()
        assert [each for each in folders if not each.exists()] == [broken]

    def test_what_others_hold_is_read_once(
        self, server: ApiServer, node: ClaimNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each claim that is added asks for it, and there may be thousands."""
        read: list[Path] = []

        def read_owner(folder: Path) -> dict[str, Any] | None:
            read.append(folder)
            return state_read_owner(folder)

        state_read_owner = state.read_owner
        monkeypatch.setattr(state, "read_owner", read_owner)
        monkeypatch.setattr(unchanged, "_SETTLED_NS", 0)
        driver = node.driver()
        for number in range(30):
            driver.prepare(named(add(server, result(GPUS[0], "1Mi"), name=f"share{number}")))
        assert 30 <= len(read) <= 5 * 30

    def test_many_at_once_and_one_many_times(self, server: ApiServer, node: ClaimNode) -> None:
        made = [add(server, result(GPUS[i % 2], "256Mi", "5"), name=f"claim-{i}") for i in range(20)]
        driver = node.driver()
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda each: driver.prepare(named(each)), made * 3))
        assert answers == answers[:20] * 3
        assert len(node.left()) == 40
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda each: driver.unprepare(named(each)), made * 2))
        assert node.left() == set()

    def test_more_than_a_gpu_has_is_never_given_however_many_ask_at_once(
        self, server: ApiServer, node: ClaimNode
    ) -> None:
        made = [named(add(server, result(GPUS[0], "3Gi"), name=f"claim-{i}")) for i in range(10)]
        driver = node.driver()
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda each: each_on_its_own([each], driver.prepare)[each.uid], made))
        assert sum(isinstance(each, list) for each in answers) == 2
        refused = next(each for each in answers if isinstance(each, ClaimError))
        assert "still prepared" in str(refused)

    def test_compute_is_not_reserved_twice(self, server: ApiServer, node: ClaimNode) -> None:
        first, second = (named(add(server, result(GPUS[0], "1Gi", "60"), name=name)) for name in ("one", "two"))
        node.driver().prepare(first)
        with pytest.raises(ClaimError, match="120 %"):
            node.driver().prepare(second)


class TestRefusals:
    def test_one_claim_that_fails_keeps_no_other_back(self, server: ApiServer, node: ClaimNode) -> None:
        good = named(add(server, result(GPUS[0])))
        bad = named(add(server, result("gpu-elsewhere"), name="bad"))
        gone = named(claim(name="gone"))
        answers = each_on_its_own([bad, good, gone], node.driver().prepare)
        assert isinstance(answers[good.uid], list)
        assert "gpu-elsewhere" in str(answers[bad.uid])
        assert "lab/gone is not there" in str(answers[gone.uid])
        assert len(node.left()) == 2  # nothing of those that were refused

    def test_the_api_server_is_away(self, server: ApiServer, node: ClaimNode) -> None:
        made = named(add(server, result(GPUS[0])))
        server.stop()
        with pytest.raises(ClusterError, match="does not answer"):
            node.driver().prepare(made)
        assert node.left() == set()

    def test_a_gpu_that_has_vanished(self, server: ApiServer, node: ClaimNode) -> None:
        made = named(add(server, result(GPUS[0])))
        node.driver().prepare(made)
        node.gpus = GPUS[1:]
        with pytest.raises(ClaimError, match="does not have now"):
            node.driver().prepare(made)
        node.driver().resume()  # it starts all the same, and says so
        assert any("does not have now" in line for line in node.lines)
        node.driver().unprepare(made)
        assert node.left() == set()

    def test_no_driver_for_containers(self, server: ApiServer, node: ClaimNode) -> None:
        made = named(add(server, result(GPUS[0])))
        (node.cdi / "nvidia.json").unlink()
        answers = each_on_its_own([made], node.driver().prepare)
        assert "nvidia-ctk" in str(answers[made.uid])
        assert node.left() == set()

    def test_a_mistake_of_ours_is_an_answer_too(self, server: ApiServer, node: ClaimNode) -> None:
        made = named(add(server, result(GPUS[0])))
        node.gpus = [None]  # type: ignore[list-item]
        answers = each_on_its_own([made], node.driver().prepare)
        assert "please report it" in str(answers[made.uid])


class TestLost:
    """Claims that kubelet has forgotten to give back."""

    @pytest.mark.parametrize(
        "fault",
        [
            (404, b"404 page not found"),
            (404, b'{"kind": "Status", "reason": "NotFound", "details": {}}'),
            (200, b'{"metadata": {}}'),
            (503, b"starting"),
        ],
    )
    def test_a_server_that_does_not_know_yet_takes_nothing_away(
        self, server: ApiServer, node: ClaimNode, fault: tuple[int, bytes]
    ) -> None:
        made = named(add(server, result(GPUS[0])))
        node.driver().prepare(made)
        server.fault = fault
        with pytest.raises(ClusterError):
            node.driver().release_lost(0, set)
        assert node.claims.find(made.uid)

    def test_a_claim_that_is_allocated_to_nobody_is_given_back(self, server: ApiServer, node: ClaimNode) -> None:
        made = add(server, result(GPUS[0]))
        node.driver().prepare(named(made))
        del made["status"]
        node.driver().release_lost(0, set)
        assert node.left() == set()


class TestUnprepare:
    def test_nothing_is_left_and_once_more_is_no_mistake(self, server: ApiServer, node: ClaimNode) -> None:
        made = named(add(server, result(GPUS[0])))
        node.driver().prepare(made)
        for _ in range(2):
            node.driver().unprepare(made)
        assert node.left() == set()
        named_both = f"claim lab/share ({made.uid})"
        assert node.lines == [
            f"{named_both}: prepared with 2 GiB and no compute limit of GPU 0",
            *[f"{named_both}: given back"] * 2,
        ]

    def test_a_claim_that_nobody_knows(self, node: ClaimNode) -> None:
        node.driver().unprepare(ClaimName("5a4ffc02-7a3c-4a27-9cf4-6f3ba8b05d0f", "lab", "unknown"))

    def test_a_uid_that_would_be_another_place(self, node: ClaimNode) -> None:
        (node.root / "containers").mkdir(parents=True)
        with pytest.raises(ClaimError):
            node.driver().unprepare(ClaimName("../containers", "lab", "share"))
        assert (node.root / "containers").exists()

    def test_a_record_that_cannot_be_read_is_made_anew(self, server: ApiServer, node: ClaimNode) -> None:
        made = named(add(server, result(GPUS[0])))
        first = node.driver().prepare(made)
        for content in ("", "[]", "{}", '{"claim": 1}', '{"claim": {"uid": 1}, "devices": [1]}'):
            (node.root / "claims" / made.uid / "owner").write_text(content)
            assert node.driver().prepare(made) == first
        assert node.claims.find(made.uid) is not None
