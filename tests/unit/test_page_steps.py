"""The steps of a page: none is overlooked, and each is taken or named among those that are replaced."""

from __future__ import annotations

import pytest

from support.page_steps import Steps

PAGE = """\
Give the file (`app.yaml`):

    size: 1

    name: any

and run, as `vgpurun run` does, on each node `vgpurun slice
create any` and:

    $ docker push REGISTRY/any
    helm install any \\
      --set way=any   # in a minute

It needs `--set` and a `kubectl apply -k any`.
"""
COMMANDS = ("vgpurun slice create any", "docker push REGISTRY/any", "helm install any    --set way=any   # in a minute")


def test_blocks_and_commands_are_steps_in_their_order() -> None:
    steps = Steps(PAGE, {})
    assert [steps.next() for _ in range(5)] == ["size: 1\n\nname: any\n", *COMMANDS, "kubectl apply -k any"]
    steps.end()


def test_a_replaced_step_is_passed_over() -> None:
    steps = Steps(PAGE, {"docker push": "no registry"})
    assert [steps.next() for _ in range(3)][2] == COMMANDS[2]
    assert steps.passed == [COMMANDS[1]]


@pytest.mark.parametrize(("taken", "replaced"), [(4, {}), (5, {"docker pull": "not on the page"})])
def test_what_is_left_or_replaced_in_vain_is_found(taken: int, replaced: dict[str, str]) -> None:
    steps = Steps(PAGE, replaced)
    for _ in range(taken):
        steps.next()
    with pytest.raises(AssertionError):
        steps.end()


def test_another_step_than_the_expected_one_is_found() -> None:
    with pytest.raises(AssertionError, match="next step is not"):
        Steps(PAGE, {}).next("docker")
