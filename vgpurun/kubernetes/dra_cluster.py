"""What the DRA plugin asks of Kubernetes' API server. Objects are the plain JSON of the API."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from vgpurun.errors import ClusterError
from vgpurun.kubernetes.dra_model import DRIVER

_TIMEOUT_S = (5, 15)  # to connect, to answer
_NOT_FOUND = 404


class Cluster:
    """The API server, by the service account of a pod or by a kubeconfig file. All methods raise ClusterError."""

    def __init__(self, kubeconfig: str | None = None) -> None:
        try:
            import yaml

            from kubernetes import client, config  # slow to import
        except ImportError as error:
            raise ClusterError(f"{error.name} is not installed: pip install 'vgpurun[k8s]'") from None
        settings = client.Configuration()
        try:
            if kubeconfig is None:
                config.load_incluster_config(settings)
            else:
                config.load_kube_config(kubeconfig, client_configuration=settings)
        except (config.ConfigException, OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            place = f"the kubeconfig {kubeconfig}" if kubeconfig else "the service account of this pod"
            reason = " ".join(str(error).split())
            raise ClusterError(f"{place} cannot be used: {reason}; name a file with --kubeconfig") from None
        connection = client.ApiClient(settings)
        self._server = settings.host
        self._resources = client.ResourceV1Api(connection)
        self._core = client.CoreV1Api(connection)

    def claim(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return a ResourceClaim, or None where there is none."""
        return self._ask(self._resources.read_namespaced_resource_claim, name, namespace)

    def node_uid(self, node: str) -> str:
        """Return the UID of a Node."""
        found = self._ask(self._core.read_node, node)
        if found is None:
            raise ClusterError(f"the cluster has no node '{node}'; name this node with --node")
        return str(found["metadata"]["uid"])

    def slices(self, node: str) -> list[dict[str, Any]]:
        """Return the ResourceSlices of our driver on a node."""
        selector = f"spec.driver={DRIVER},spec.nodeName={node}"
        found = self._ask(self._resources.list_resource_slice, field_selector=selector)
        if found is None:
            raise ClusterError(f"{self._server} has no resource.k8s.io/v1; DRA plugins need Kubernetes 1.34 or newer")
        return list(found["items"])

    def create_slice(self, body: dict[str, Any]) -> dict[str, Any]:
        """Make a ResourceSlice, and return it as the server has it."""
        return self._ask(self._resources.create_resource_slice, body) or {}

    def replace_slice(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Change a ResourceSlice if it is as the body's resourceVersion says, and return it as the server has it."""
        return self._ask(self._resources.replace_resource_slice, name, body) or {}

    def delete_slice(self, name: str) -> None:
        """Delete a ResourceSlice if it is there."""
        self._ask(self._resources.delete_resource_slice, name)

    def _ask(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> dict[str, Any] | None:
        """The answer to a call, as JSON; None when there is no such object."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            answer = call(*arguments, **options, _preload_content=False, _request_timeout=_TIMEOUT_S)
            found = json.loads(answer.data)
        except ApiException as error:
            if error.status == _NOT_FOUND:
                return None
            raise ClusterError(f"{self._server} refused: {_reason(error)}") from None
        except (HTTPError, OSError) as error:
            raise ClusterError(f"{self._server} does not answer: {error}") from None
        except ValueError:
            raise ClusterError(f"{self._server} has answered with something else than JSON") from None
        return found if isinstance(found, dict) else {}


def _reason(error: Any) -> str:
    """The server's own words, which a Status object has."""
    with suppress(ValueError, TypeError, AttributeError):
        if message := json.loads(error.body).get("message"):
            return str(message)
    return f"{error.status} {error.reason}"
