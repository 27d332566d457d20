"""The policy about ResourceSlices, evaluated as the API server would."""

from __future__ import annotations

from typing import Any

import pytest

from vgpurun.kubernetes.dra.model import DRIVER


def refusals(
    policy: dict[str, Any], writer: dict[str, Any], node: str, driver: str = DRIVER, operation: str = "CREATE"
) -> list[str]:
    """The messages of what fails when `writer` writes a slice; none where the policy is not about that writer."""
    cel = pytest.importorskip("cel_expr_python.cel")
    optional = pytest.importorskip("cel_expr_python.ext.ext_optional")
    names = ("request", "object", "oldObject", "variables")
    env = cel.NewEnv(variables=dict.fromkeys(names, cel.Type.DYN), extensions=[optional.ExtOptional()])
    written = {"spec": {"driver": driver, "nodeName": node}}
    known: dict[str, Any] = {
        "request": {"operation": operation, "userInfo": writer},
        "object": None if operation == "DELETE" else written,
        "oldObject": None if operation == "CREATE" else written,
        "variables": {},
    }

    def plain(value: Any) -> Any:
        value = value.value() if isinstance(value, cel.Value) else value
        return {key: plain(each) for key, each in value.items()} if isinstance(value, dict) else value

    def value(expression: str) -> Any:
        found = env.compile(expression).eval(data=known)
        assert found.type() != cel.Type.ERROR, f"{expression}: {found}"
        return plain(found)

    spec = policy["spec"]
    if not all(value(each["expression"]) for each in spec["matchConditions"]):
        return []
    for each in spec["variables"]:
        known["variables"][each["name"]] = value(each["expression"])
    return [each["message"] for each in spec["validations"] if not value(each["expression"])]
