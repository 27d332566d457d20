"""The DRA plugin's requests to Kubernetes' API server. Objects are the plain JSON of the API."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from vgpurun.errors import ClusterError
from vgpurun.kubernetes.dra.model import DRIVER
from vgpurun.util.extras import installing

_CONNECT_S = 5
_ANSWER_S = 15
_WATCH_S = 300  # an idle watch whose connection is dead is noticed by then
_NOT_FOUND = 404


class Cluster:
    """The API server, by the service account of a pod or by a kubeconfig file. All methods raise ClusterError."""

    def __init__(self, kubeconfig: str | None = None) -> None:
        try:
            import yaml
            from urllib3 import Retry

            from kubernetes import client, config  # slow to import
        except ImportError as error:
            raise ClusterError(f"{error.name} is not installed: {installing('k8s')}") from None
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
        # Once more is for a connection that was closed meanwhile. The server must not say for how long to wait.
        settings.retries = Retry(1, respect_retry_after_header=False)
        connection = client.ApiClient(settings)
        self._server = settings.host
        self._resources = client.ResourceV1Api(connection)
        self._core = client.CoreV1Api(connection)

    def claim(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return a ResourceClaim, or None where there is none."""
        found = self._ask(self._resources.read_namespaced_resource_claim, name, namespace)
        if found is not None and not found["metadata"].get("uid"):
            raise ClusterError(f"{self._server} has answered with something that is no claim")
        return found

    def node_uid(self, node: str) -> str:
        """Return the UID of a Node."""
        found = self._ask(self._core.read_node, node)
        if found is None:
            raise ClusterError(f"the cluster has no node '{node}'; name this node with --node")
        return str(found["metadata"]["uid"])

    def slices(self, node: str) -> list[dict[str, Any]]:
        """Return the ResourceSlices of our driver on a node."""
        found = self._must(self._resources.list_resource_slice, field_selector=_selector(node))
        return list(found.get("items") or [])

    @contextmanager
    def watching_slices(self, node: str) -> Iterator[Iterator[dict[str, Any]]]:
        """Yield what happens to these slices, for some minutes; first come those that there are."""
        with self._speaking():
            answer = self._resources.list_resource_slice(
                field_selector=_selector(node),
                watch=True,
                timeout_seconds=_WATCH_S,
                _preload_content=False,
                _request_timeout=(_CONNECT_S, _WATCH_S + _ANSWER_S),
            )
            with closing(answer):
                yield map(_event, answer)

    def create_slice(self, body: dict[str, Any], is_dry: bool = False) -> dict[str, Any]:
        """Make a ResourceSlice, and return it as the server has it; `is_dry`: or would have it, and nothing is made."""
        options = {"dry_run": "All"} if is_dry else {}
        return self._must(self._resources.create_resource_slice, body, **options)

    def replace_slice(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Change a ResourceSlice if it is as the body's resourceVersion says, and return it as the server has it."""
        return self._must(self._resources.replace_resource_slice, name, body)

    def delete_slice(self, name: str) -> None:
        """Delete a ResourceSlice if it is there."""
        self._ask(self._resources.delete_resource_slice, name)

    def _must(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> dict[str, Any]:
        """The answer to a call about an object that is there."""
        found = self._ask(call, *arguments, **options)
        if found is None:
            raise ClusterError(f"{self._server} no longer has the ResourceSlice")
        return found

    def _ask(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> dict[str, Any] | None:
        """The answer to a call, as JSON; None when there is no such object."""
        from kubernetes.client.exceptions import ApiException

        with self._speaking():
            try:
                answer = call(*arguments, **options, _preload_content=False, _request_timeout=(_CONNECT_S, _ANSWER_S))
            except ApiException as error:
                if _is_missing(error):
                    return None
                raise
            found = json.loads(answer.data)
            if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict):
                raise ValueError
            return found

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        """Make ClusterError of all that can go wrong."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as error:
            if error.status == _NOT_FOUND:
                needed = "DRA plugins need Kubernetes 1.34 or newer"
                raise ClusterError(f"{self._server} does not serve resource.k8s.io/v1, or not yet; {needed}") from None
            raise ClusterError(f"{self._server} refused: {_reason(error)}") from None
        except (HTTPError, OSError) as error:
            reason = re.sub(r" at 0x[0-9a-f]+", "", str(error))  # else it is another one each time
            raise ClusterError(f"{self._server} does not answer: {reason}") from None
        except ValueError:
            raise ClusterError(f"{self._server} has answered with something that is no object of its API") from None


def _selector(node: str) -> str:
    return f"spec.driver={DRIVER},spec.nodeName={node}"


def _event(line: bytes) -> dict[str, Any]:
    """Read an event of a watch. Raises ClusterError where it says that the watch has failed, and ValueError."""
    event = json.loads(line)
    if not isinstance(event, dict):
        raise ValueError
    if event.get("type") == "ERROR":
        status = event.get("object")
        raise ClusterError(f"the watch has ended: {status.get('message') if isinstance(status, dict) else status}")
    return event


def _is_missing(error: Any) -> bool:
    """Whether the server says that it has no such object, and not that it does not know of such objects (yet)."""
    with suppress(ValueError, TypeError, KeyError):
        return error.status == _NOT_FOUND and bool(json.loads(error.body)["details"]["name"])
    return False


def _reason(error: Any) -> str:
    """The server's own words, which a Status object has."""
    with suppress(ValueError, TypeError, AttributeError):
        if message := json.loads(error.body).get("message"):
            return str(message)
    return f"{error.status} {error.reason}"
