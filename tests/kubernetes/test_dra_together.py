"""The hook by which containers of a claim join its MPS server, without an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from claim_maker import claim, parameters, result
from claim_node import GPUS, ClaimNode, OneClaim, named
from vgpurun.errors import ClaimError, SliceError
from vgpurun.kubernetes.dra import together
from vgpurun.kubernetes.dra.claim import quotas_of, read_claim
from vgpurun.slices.quotas import quotas_on


def test_no_container_joins_what_is_not_prepared(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"process": {"user": {"uid": 0}}, "mounts": []}))
    hook = [sys.executable, "-m", together.__name__, str(tmp_path / "claims" / "4f2a")]
    said = json.dumps({"bundle": str(tmp_path), "pid": os.getpid()})
    done = subprocess.run(hook, input=said, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "vgpurun: claim 4f2a is not prepared\n")


def test_a_container_whose_gpu_has_gone_is_told_of_its_claim(tmp_path: Path) -> None:
    made = claim(result(GPUS[0]), config=(parameters(together=True),))
    node = ClaimNode(tmp_path / "node", OneClaim(made))
    allocation = read_claim(named(made), made, "node-a")
    prepared = node.claims.add(allocation, quotas_of(allocation, GPUS), {}, Path("/lib/libvgpu.so"))
    found = together._find(prepared.folder, False)
    assert found.together and found.user == "root"
    with pytest.raises(SliceError, match=r"^claim lab/share is on GPU .*; delete the pods that use it$"):
        quotas_on(found, GPUS[1:])


def test_no_claim_works_at_the_same_time_where_others_could_change_the_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = claim(result(GPUS[0]), config=(parameters(together=True),))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(together, "distrust", lambda: "others than root can change /opt/x")
    node = ClaimNode(tmp_path / "node", OneClaim(made))
    with pytest.raises(ClaimError, match=r"lab/share has together, which this node cannot give: others .* /opt/x"):
        node.driver().prepare(named(made))
    assert node.left() == set()
