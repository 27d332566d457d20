"""Invented shares of a GPU in Compose files are found, explained, and become limits that hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from vgpurun.cli.commands.convert import convert as command
from vgpurun.compose.convert import convert
from vgpurun.errors import ComposeError

DEVICE = {"driver": "cdi", "device_ids": ["vgpurun.io/gpu=shop-a"], "capabilities": ["gpu"]}
OPTIONS = """\
name: shop
services:
  a:  # the model
    image: x
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              count: 1   # one
              capabilities: [gpu]
              options:
                memory: 8g
  # The rest.
  b:
    image: y
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "compose.yaml"
    path.write_text(text)
    return path


def devices_of(text: str, service: str = "a") -> list[dict]:
    return yaml.safe_load(text)["services"][service]["deploy"]["resources"]["reservations"]["devices"]


def test_options_become_the_device_of_a_slice_and_all_else_stays(tmp_path: Path) -> None:
    found = convert(written(tmp_path, OPTIONS))
    assert list(found.commands) == ["vgpurun slice create shop-a --mem 8g"]
    assert found.text == OPTIONS.replace(
        """\
            - driver: nvidia
              count: 1   # one
              capabilities: [gpu]
              options:
                memory: 8g
""",
        """\
            - driver: cdi
              device_ids: ["vgpurun.io/gpu=shop-a"]
              capabilities: [gpu]
""",
    )
    (finding,) = found.found[0].findings
    assert (finding.line, finding.shown) == (13, "options.memory: 8g")
    assert "does nothing" in finding.reason


# A service's settings, and the options of its slice.
INVENTIONS = {
    "a variable in a list": ("environment:\n  - CUDA_DEVICE_MEMORY_LIMIT=2g\n  - A=1", "--mem 2g"),
    "variables": ('environment:\n  CUDA_DEVICE_MEMORY_LIMIT_0: 2g\n  CUDA_DEVICE_SM_LIMIT: "30"', "--mem 2g --sm 30"),
    "runtime and a variable": ("runtime: nvidia\nenvironment:\n  GPU_MEMORY_LIMIT: 50%", "--mem 50%"),
    "deploy limits": ("deploy:\n  resources:\n    limits:\n      gpu_memory: 4g", "--mem 4g"),
    "limits with others": ("deploy:\n  resources:\n    limits:\n      memory: 1g\n      gpu_memory: 4g", "--mem 4g"),
    "of the service": ("gpu_memory: 3g\ngpu_cores: 20", "--mem 3g --sm 20"),
    "in the device": (
        "deploy:\n  resources:\n    reservations:\n      devices:\n        - capabilities: [gpu]\n          count: 2\n"
        "          memory: 1g",
        "--mem 1g --gpus 2",
    ),
    "gpus": ("gpus: all\ngpu_memory: 1g", "--mem 1g --gpus all"),
    "gpus in a list": ("gpus:\n  - driver: nvidia\n    count: 2\n    options:\n      memory: 1g", "--mem 1g --gpus 2"),
    "gpus without a count": ("gpus: [{options: [vram=1g]}]", "--mem 1g --gpus all"),
    "one of gpus": ("gpus:\n  - count: 1\n    capabilities: [utility]\n    options: {memory: 1g}", "--mem 1g"),
    "gpus by name": (
        'gpus:\n  - device_ids: ["0"]\n  - device_ids: [GPU-7]\ngpu_memory: 1g', "--mem 1g --gpus device=0,GPU-7"
    ),
    "gpus by CDI": (
        "gpu_memory: 1g\ndevices:\n  - nvidia.com/gpu=1\n  - source: nvidia.com/gpu=2\n  - /dev/nvidiactl",
        "--mem 1g --gpus device=1,2",
    ),
    "gpus of the runtime": (
        "runtime: nvidia\nenvironment: [NVIDIA_VISIBLE_DEVICES=all, VRAM_LIMIT=1g]", "--mem 1g --gpus all"
    ),
    "gpus twice": (
        "gpus:\n  - device_ids: ['0']\ndeploy:\n  resources:\n    reservations:\n      devices:\n"
        "        - driver: nvidia\n          device_ids: ['1']\n          options: {memory: 1g}\n"
        "          capabilities: [gpu]\n        - driver: nvidia\n          device_ids: ['2']\n"
        "          capabilities: [gpu]",
        "--mem 1g --gpus device=1,2,0",
    ),
    "all for want of a count": (
        "deploy: {resources: {reservations: {devices: [{capabilities: [gpu], options: {memory: 1g}}]}}}",
        "--mem 1g --gpus all",
    ),
    "keys without a value": ("deploy:\ngpu_memory: 1g", "--mem 1g"),
    "merged into the device": (
        "deploy:\n  resources:\n    reservations:\n      devices:\n        - <<: {driver: nvidia, count: 2}\n"
        "          options: {memory: 1g}",
        "--mem 1g --gpus 2",
    ),
    "named gpus": (
        "deploy:\n  resources:\n    reservations:\n      devices:\n        - driver: nvidia\n"
        '          device_ids: ["0", "3"]\n          options:\n            vram: 1g\n          capabilities: [gpu]',
        "--mem 1g --gpus device=0,3",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "options"), INVENTIONS.values(), ids=INVENTIONS)
def test_an_invention_becomes_a_slice(tmp_path: Path, settings: str, options: str) -> None:
    indented = "".join(f"    {line}\n" for line in settings.splitlines())
    found = convert(written(tmp_path, f"name: shop\nservices:\n  a:\n    image: x\n{indented}  b:\n    image: y\n"))
    assert list(found.commands) == [f"vgpurun slice create shop-a {options}"]
    assert devices_of(found.text) == [DEVICE]
    service = yaml.safe_load(found.text)["services"]["a"]
    assert service["image"] == "x"
    assert service["deploy"]["resources"].get("limits") in (None, {"memory": "1g"})
    assert service.get("environment") in (None, ["A=1"])
    assert set(service) <= {"image", "deploy", "environment"}
    again = convert(written(tmp_path, found.text))
    assert (list(again.found), again.text) == ([], found.text), "converted once, it is done"


def test_what_the_library_by_hand_needed_goes_with_it(tmp_path: Path) -> None:
    text = """\
services:
  a:
    image: x
    volumes:
      - ../lib/build/libvgpu.so:/.vgpurun/libvgpu.so:ro
      - /tmp/vgpulock:/tmp/vgpulock
      - .:/work
    environment:
      LD_PRELOAD: /.vgpurun/libvgpu.so
      CUDA_DEVICE_MEMORY_LIMIT: 2g
      NVIDIA_VISIBLE_DEVICES: all
"""
    found = convert(written(tmp_path, text))
    reasons = {finding.shown: finding.reason for finding in found.found[0].findings}
    assert "holds for a program that keeps its variables" in reasons["CUDA_DEVICE_MEMORY_LIMIT=2g"]
    assert len(reasons) == 5
    service = yaml.safe_load(found.text)["services"]["a"]
    assert service["volumes"] == [".:/work"]
    assert "environment" not in service


def test_services_that_share_an_anchor_share_the_slice(tmp_path: Path) -> None:
    text = OPTIONS.replace("services:\n  a:  # the model", "x-job: &job").replace(
        "  # The rest.\n  b:\n    image: y\n", ""
    )
    text = text.replace("\n    ", "\n  ") + "services:\n  a:\n    <<: *job\n  b:\n    <<: *job\n    image: y\n"
    found = convert(written(tmp_path, text))
    assert list(found.commands) == ["vgpurun slice create shop-a --mem 8g"]
    assert devices_of(found.text) == devices_of(found.text, "b") == [DEVICE]
    assert found.text.count("vgpurun.io/gpu=shop-a") == 1
    assert [each.split(":")[0] for each in found.shared] == [
        "Services a and b share lines (an anchor or extends), and so slice shop-a"
    ]
    assert found.shared[0] in CliRunner().invoke(command, [str(tmp_path / "compose.yaml")]).output


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("memory: 8g", "memory: lots", "13: memory limit 'lots'"),
        ("memory: 8g", "memory: ${VRAM:-8g}", "13: options.memory: ${VRAM:-8g}: Compose inserts a value"),
        ("count: 1 ", "count: ${GPUS-1}", "10: count: ${GPUS-1}: Compose inserts a value"),
        ("count: 1 ", 'device_ids: ["${GPU}"]', "10: device_ids: ${GPU}: Compose inserts a value"),
        ("count: 1 ", "count: 0", "10: '0' is not all or a number of GPUs"),
        ("    image: x\n", "    image: x\n    gpus:\n      - count: 1\n", "GPUs are asked for more than once"),
        ("    image: x\n", "    image: x\n    environment: [CUDA_DEVICE_MEMORY_LIMIT]\n", "Compose inserts a value"),
        (
            "    image: x\n",
            "    image: x\n    devices: [/dev/nvidia0]\n",
            "/dev/nvidia0 is a whole GPU beside the slice",
        ),
        ("    image: x\n", "    image: x\n    extends: {file: o.yaml, service: o}\n", "5: extends: another service"),
        ("driver: nvidia", "device_ids: [vgpurun.io/gpu=big]\n              driver: cdi", "limits of its slice"),
        ("  b:\n", "  b:\n    command: [a, # one\n      b]\n", "comments within [] or {} would be lost"),
        ("    image: y\n", "    deploy: *d\n    gpu_cores: 20\n", "a and b share lines with a GPU, but not its limits"),
    ],
)
def test_what_cannot_be_rewritten_is_said_and_left(tmp_path: Path, old: str, new: str, word: str) -> None:
    text = OPTIONS.replace(old, new).replace("deploy:\n", "deploy: &d\n" if "*d" in new else "deploy:\n")
    path = written(tmp_path, text)
    found = convert(path)
    assert found.text == text != OPTIONS
    assert not any("$" in line for line in found.commands)
    assert any(word in line for line in found.by_hand), found.by_hand
    assert CliRunner().invoke(command, [str(path), "--write"], standalone_mode=False).return_value == 1
    assert path.read_text() == text


def test_devices_of_others_stay_beside_the_slice(tmp_path: Path) -> None:
    tpu = {"capabilities": ["tpu"], "driver": "other", "options": {"memory": "1g"}}
    text = OPTIONS.replace(
        "          devices:\n",
        "          devices:\n            - {capabilities: [tpu], driver: other, options: {memory: 1g}}\n",
    ).replace("    image: y\n", "    image: y\n    gpus: [{driver: amd}]\n    gpu_memory: 1g\n")
    found = convert(written(tmp_path, text))
    assert devices_of(found.text) == [tpu, DEVICE]
    assert yaml.safe_load(found.text)["services"]["b"]["gpus"] == [{"driver": "amd"}]
    assert devices_of(found.text, "b") == [DEVICE | {"device_ids": ["vgpurun.io/gpu=shop-b"]}]


def test_a_service_without_limits_gets_no_slice_by_an_anchor(tmp_path: Path) -> None:
    text = OPTIONS.replace("              options:\n                memory: 8g\n", "    environment: [VRAM_LIMIT=8g]\n")
    text = text.replace("deploy:", "deploy: &gpu").replace("    image: y\n", "    deploy: *gpu\n")
    found = convert(written(tmp_path, text))
    assert found.text == text
    assert [each.partition(": ")[2] for each in found.by_hand] == [
        "service b would change with another whose lines it shares; give it lines of its own"
    ]


def test_services_that_extend_one_share_its_slice_and_that_is_said(tmp_path: Path) -> None:
    text = (
        OPTIONS + "    extends: a\n  c:\n    extends: {service: b}\n  d:\n    extends: {service: a, file: other.yaml}\n"
    )
    found = convert(written(tmp_path, text))
    assert found.text != text
    (said,) = found.shared
    assert said.startswith("Services a, b and c share lines (an anchor or extends), and so slice shop-a: together")


def test_a_service_may_extend_one_without_gpus(tmp_path: Path) -> None:
    found = convert(written(tmp_path, OPTIONS.replace("    image: x\n", "    image: x\n    extends: b\n")))
    assert devices_of(found.text) == [DEVICE]
    assert found.shared == []


def test_two_services_with_shared_variables_have_a_slice_each(tmp_path: Path) -> None:
    text = """\
name: shop
services:
  a: &a
    image: x
    gpus: all
    environment: &e
      # for both
      VRAM_LIMIT: 2g  # each
      B: "1"
  b:
    <<: *a
    image: 'y'
  c:
    environment: *e
"""
    found = convert(written(tmp_path, text))
    assert [each.split("create ")[1] for each in found.commands] == [
        "shop-a --mem 2g --gpus all", "shop-b --mem 2g --gpus all", "shop-c --mem 2g",
    ]  # fmt: skip
    assert found.shared == []
    for name in "abc":
        assert devices_of(found.text, name) == [DEVICE | {"device_ids": [f"vgpurun.io/gpu=shop-{name}"]}]
        assert yaml.safe_load(found.text)["services"][name]["environment"] == {"B": "1"}
    assert "gpus" not in found.text
    assert 'environment: &e\n      # for both\n      B: "1"\n' in found.text
    assert "    <<: *a\n    image: 'y'\n" in found.text


LAID_OUT = """\
---
# The services of a shop.
x-env: &env {LANG: C, 'TZ': "UTC"}  # flow

services:
  # The model.
  a:
    image: "x"   # pinned
    gpus: all
    environment:
    # who
    - USER=1
    # how much
    - VRAM_LIMIT=2g   # of 8
    # the end

  # The rest.

  b:
    image: 'y'
    environment: *env
    mode: 0440
    nothing: ~
    ports:
    - 22:22
    - "80:80"  # web
    reset: !reset null
    command: >-
      sleep
      1
volumes: {}
# end
"""


def test_comments_anchors_quotes_and_layout_stay(tmp_path: Path) -> None:
    found = convert(written(tmp_path, LAID_OUT))
    assert found.by_hand == []
    expected = LAID_OUT.replace("    gpus: all\n", "").replace("    - VRAM_LIMIT=2g   # of 8\n", "")
    device = """\
    deploy:
      resources:
        reservations:
          devices:
          - driver: cdi
            device_ids: ["vgpurun.io/gpu=NAME-a"]
            capabilities: [gpu]
""".replace("NAME", tmp_path.name.lower().replace("_", "_"))
    assert found.text == expected.replace("    # the end\n", f"    # the end\n{device}")


def test_line_ends_stay(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    path.write_bytes(OPTIONS.replace("\n", "\r\n").encode())
    assert CliRunner().invoke(command, [str(path), "--write"], standalone_mode=False).return_value == 0
    assert devices_of(path.read_text()) == [DEVICE]
    content = path.read_bytes()
    assert content.count(b"\n") == content.count(b"\r\n") > 10


def test_a_file_with_two_kinds_of_line_ends_is_left(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    content = OPTIONS.replace("\n", "\r\n", 1).encode()
    path.write_bytes(content)
    assert any("CRLF" in line for line in convert(path).by_hand)
    assert CliRunner().invoke(command, [str(path), "--write"], standalone_mode=False).return_value == 1
    assert path.read_bytes() == content


def test_services_whose_names_differ_in_case_alone_have_a_slice_each(tmp_path: Path) -> None:
    services = "".join(f"  {name}:\n    gpu_memory: 2g\n" for name in ("Web", "web", "web-2", "web."))
    found = convert(written(tmp_path, f"name: shop\nservices:\n{services}"))
    names = [each.split()[3] for each in found.commands]
    assert names == ["shop-web", "shop-web-2", "shop-web-2-2", "shop-web-3"]
    assert [devices_of(found.text, each)[0]["device_ids"] for each in ("Web", "web", "web-2", "web.")] == [
        [f"vgpurun.io/gpu={name}"] for name in names
    ]
    assert not found.shared


def test_aliases_that_make_too_much_of_a_file_are_refused(tmp_path: Path) -> None:
    lines = ["x-0: &x0 [1, 2]", *(f"x-{n}: &x{n} [*x{n - 1}, *x{n - 1}]" for n in range(1, 18))]
    with pytest.raises(ComposeError, match=r"compose\.yaml: more than 100000 values, with those of each alias"):
        convert(written(tmp_path, "\n".join([*lines, OPTIONS])))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("services: {a: &a {<<: *a}}", "an alias stands within its own anchor"),
        ("&a\n<<: *a\nservices: {a: {}}", "an alias stands within its own anchor"),
        (f"services: {{a: {'[' * 700}{']' * 700}}}", "nested too deep"),
    ],
)
def test_values_that_never_end_are_told_from_those_nested_too_deep(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ComposeError, match=reason):
        convert(written(tmp_path, text))


def test_a_project_s_name_that_compose_inserts_is_that_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    found = convert(written(folder, OPTIONS.replace("name: shop", "name: ${PROJECT-none}")))
    assert list(found.commands) == ["vgpurun slice create shop-a --mem 8g"]


def test_a_file_without_inventions_is_left_alone(tmp_path: Path) -> None:
    text = OPTIONS.replace("              options:\n                memory: 8g\n", "")
    path = written(tmp_path, text)
    result = CliRunner().invoke(command, [str(path), "--write"], standalone_mode=False)
    assert (result.return_value, result.output) == (0, f"{path}: nothing to convert\n")
    assert path.read_text() == text


def test_the_verb_shows_changes_and_writes_when_told(tmp_path: Path) -> None:
    path = written(tmp_path, OPTIONS)
    path.chmod(0o640)
    shown = CliRunner().invoke(command, [str(path)], standalone_mode=False)
    assert shown.return_value == 1
    assert f"{path}:13: service a: options.memory: 8g: does nothing" in shown.output
    assert "    vgpurun slice create shop-a --mem 8g\n    vgpurun cdi generate\n" in shown.output
    assert "+            - driver: cdi" in shown.output
    assert path.read_text() == OPTIONS
    done = CliRunner().invoke(command, [str(path), "--write"], standalone_mode=False)
    assert (done.return_value, done.output.splitlines()[-1]) == (0, f"{path}: rewritten")
    assert devices_of(path.read_text()) == [DEVICE]
    assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "text", ["services: [", "a: 1\n", "- a\n", "", "services:\n", b"\xff", "services: {a: &a {<<: *a}}\n"]
)
def test_what_is_no_compose_file_is_refused(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "compose.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ComposeError, match=r"compose\.yaml"):
        convert(path)
    with pytest.raises(ComposeError, match="No such file"):
        convert(tmp_path / "none.yaml")
