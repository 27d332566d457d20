"""The DRA plugin's requests to Kubernetes' API server. Objects are the plain JSON of the API."""

import json
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import quote, urlencode

from vgpurun.errors import ClusterError
from vgpurun.kubernetes.dra.model import DRIVER
from vgpurun.util.extras import installing

_CONNECT_S = 5
_ANSWER_S = 15
_WATCH_S = 1800  # the duration of Kubernetes' own watches
# The kernel notices within 30 s that an idle watch's connection is dead, and keeps it from being forgotten on the way.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
_NOT_FOUND = 404
_RESOURCES = "/apis/resource.k8s.io/v1"
_SLICES = f"{_RESOURCES}/resourceslices"


class Cluster:
    """The API server, by the service account of a pod or by a kubeconfig file. All methods raise ClusterError."""

    def __init__(self, kubeconfig: str | None = None) -> None:
        try:
            import yaml
            from urllib3 import Retry
            from urllib3.connection import HTTPConnection

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
        self._settings = settings
        self._server = settings.host
        # Not the client's own calls: the classes of objects that they know take a second of the processor, and 30 MB.
        self._connections = client.rest.RESTClientObject(settings).pool_manager
        # Older clients leave socket options out of their settings.
        self._connections.connection_pool_kw["socket_options"] = [*HTTPConnection.default_socket_options, *_KEEPALIVE]

    def claim(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return a ResourceClaim, or None where there is none."""
        found = self._ask("GET", f"{_RESOURCES}/namespaces/{_quoted(namespace)}/resourceclaims/{_quoted(name)}")
        if found is not None and not found["metadata"].get("uid"):
            raise ClusterError(f"{self._server} has answered with something that is not a claim")
        return found

    def node_uid(self, node: str) -> str:
        """Return the UID of a Node."""
        found = self._ask("GET", f"/api/v1/nodes/{_quoted(node)}")
        if found is None:
            raise ClusterError(f"the cluster has no node '{node}'; name this node with --node")
        return str(found["metadata"]["uid"])

    def slices(self, node: str) -> list[dict[str, Any]]:
        """Return the ResourceSlices of our driver on a node."""
        found = self._must("GET", _SLICES, fieldSelector=_selector(node))
        return list(found.get("items") or [])

    @contextmanager
    def watching_slices(self, node: str) -> Iterator[Iterator[dict[str, Any]]]:
        """Yield what happens to these slices, for half an hour; first come those that there are.

        Each event has its type and the slice, as `object`.
        """
        query = {"fieldSelector": _selector(node), "watch": "true", "timeoutSeconds": str(_WATCH_S)}
        with self._answer("GET", _SLICES, None, query, _WATCH_S + _ANSWER_S) as answer:
            yield map(_event, answer)

    def create_slice(self, body: dict[str, Any], is_dry: bool = False) -> dict[str, Any]:
        """Make a ResourceSlice, and return it as the server has it; `is_dry`: or would have it, and nothing is made."""
        options = {"dryRun": "All"} if is_dry else {}
        return self._must("POST", _SLICES, body, **options)

    def replace_slice(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Change a ResourceSlice if it is as the body's resourceVersion says, and return it as the server has it."""
        return self._must("PUT", f"{_SLICES}/{_quoted(name)}", body)

    def delete_slice(self, name: str) -> None:
        """Delete a ResourceSlice if it is there."""
        self._ask("DELETE", f"{_SLICES}/{_quoted(name)}")

    def _must(self, method: str, path: str, body: dict[str, Any] | None = None, **query: str) -> dict[str, Any]:
        """The answer to a request about an object that is there."""
        found = self._ask(method, path, body, **query)
        if found is None:
            raise ClusterError(f"{self._server} no longer has the ResourceSlice")
        return found

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None, **query: str) -> dict[str, Any] | None:
        """The answer to a request, as JSON; None when there is no such object."""
        with self._answer(method, path, body, query, _ANSWER_S) as answer:
            if answer.status == _NOT_FOUND:
                return None
            found = json.loads(answer.data)
            if not isinstance(found, dict) or not isinstance(found.get("metadata"), dict):
                raise ValueError
            return found

    @contextmanager
    def _answer(
        self, method: str, path: str, body: dict[str, Any] | None, query: Mapping[str, str], answer_s: float
    ) -> Iterator[Any]:
        """Yield the answer, still to be read; it may be that there is no such object.

        Makes ClusterError of all that can go wrong until it is read.
        """
        from urllib3 import Timeout
        from urllib3.exceptions import HTTPError

        try:
            answer = self._connections.request(
                method,
                f"{self._server}{path}?{urlencode(query)}",
                body=None if body is None else json.dumps(body),
                headers=self._headers(),
                timeout=Timeout(connect=_CONNECT_S, read=answer_s),
                preload_content=False,
            )
            with closing(answer):
                if not (200 <= answer.status < 300 or _is_missing(answer)):
                    raise ClusterError(self._refusal(answer))
                yield answer
        except (HTTPError, OSError) as error:
            reason = re.sub(r" at 0x[0-9a-f]+", "", str(error))  # else it is another one each time
            raise ClusterError(f"{self._server} does not answer: {reason}") from None
        except ValueError:
            raise ClusterError(f"{self._server} has answered with something that is not an object of its API") from None

    def _headers(self) -> dict[str, str]:
        """Return a request's headers, with a token that is still valid."""
        tokens = {each["key"]: each["value"] for each in self._settings.auth_settings().values() if each["value"]}
        return {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": "vgpurun"} | tokens

    def _refusal(self, answer: Any) -> str:
        if answer.status == _NOT_FOUND:
            needed = "DRA plugins need Kubernetes 1.34 or newer"
            return f"{self._server} does not serve resource.k8s.io/v1, or not yet; {needed}"
        return f"{self._server} refused: {_reason(answer)}"


def _quoted(name: str) -> str:
    return quote(name, safe="")


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
    try:
        event["type"], event["object"]["metadata"]["name"]
    except (KeyError, TypeError):
        raise ValueError from None
    return event


def _is_missing(answer: Any) -> bool:
    """Whether the server says that it has no such object, and not that it does not know of such objects (yet)."""
    with suppress(ValueError, TypeError, KeyError):
        return answer.status == _NOT_FOUND and bool(json.loads(answer.data)["details"]["name"])
    return False


def _reason(answer: Any) -> str:
    """The server's own words, which a Status object has."""
    with suppress(ValueError, TypeError, AttributeError):
        if message := json.loads(answer.data).get("message"):
            return str(message)
    return f"{answer.status} {answer.reason}"
