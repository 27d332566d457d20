"""The image of a launch."""

from __future__ import annotations

import pytest

from vgpurun.engine.client import Image


@pytest.mark.parametrize(
    ("of_image", "platform", "is_for"),
    [
        ("linux/amd64", None, True),
        ("linux/amd64", "linux/amd64", True),
        ("linux/amd64", "linux/amd64/v3", True),
        ("linux/amd64/v2", "linux/amd64/v3", True),
        ("linux/amd64/v3", "linux/amd64/v2", False),
        ("linux/amd64/v2", "linux/amd64", False),
        ("linux/arm64", "linux/arm64/v8", True),
        ("linux/arm64/v8", "linux/arm64", True),
        ("linux/arm64/v9", "linux/arm64", False),
        ("linux/arm/v6", "linux/arm", True),
        ("linux/arm/v7", "linux/arm/v6", False),
        ("linux/arm64", "linux/amd64", False),
        ("windows/amd64", "linux/amd64", False),
    ],
)
def test_an_image_is_for_its_platform_and_later_variants(of_image: str, platform: str | None, is_for: bool) -> None:
    assert Image("sha256:1", {}, of_image).is_for(platform) == is_for
