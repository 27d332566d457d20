"""gRPC over unix sockets, as kubelet speaks it: a service served by an object, and a client of one.

Methods are found by the service's description, so no code is generated for them: GetInfo is get_info of the object.
"""

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from vgpurun.errors import KubernetesError, VgpurunError

_MAX_PATH_BYTES = 107  # a unix socket's
_WORKERS = 16  # a stream keeps one for as long as it lasts


class Server:
    """A gRPC server at a unix socket, for root alone. `services` are pairs of a description and what serves it."""

    def __init__(self, path: Path, *services: tuple[ServiceDescriptor, object]) -> None:
        """Serve at once; what is left of an earlier server at `path` is replaced. Raises KubernetesError."""
        self.path = path
        self._server = grpc.server(ThreadPoolExecutor(_WORKERS, thread_name_prefix=path.name))
        self._server.add_generic_rpc_handlers(tuple(_handler(service, behind) for service, behind in services))
        if len(os.fsencode(path)) > _MAX_PATH_BYTES:
            raise KubernetesError(f"{path} is too long for a socket: {_MAX_PATH_BYTES} bytes at most")
        try:
            with suppress(FileNotFoundError):
                path.unlink()
            self._server.add_insecure_port(f"unix:{path}")
            path.chmod(0o600)
        except (OSError, RuntimeError) as error:
            raise KubernetesError(f"cannot serve at {path}: {error}") from None
        self._identity = identity(path)
        self._server.start()

    @property
    def is_reachable(self) -> bool:
        """Whether the socket's file is still this server's; kubelet removes all of them when it starts."""
        return identity(self.path) == self._identity

    def stop(self, grace_s: float = 1) -> None:
        """Answer what has been asked, for `grace_s` seconds at most, and take the socket away."""
        self._server.stop(grace_s).wait()
        if self.is_reachable:
            with suppress(FileNotFoundError):
                self.path.unlink()


@contextmanager
def client(path: Path, service: ServiceDescriptor, timeout_s: float = 10) -> Iterator[Any]:
    """Yield an object with the service's methods. A call takes `timeout_s` at most, and raises grpc.RpcError."""
    with grpc.insecure_channel(f"unix:{path}") as channel:
        yield Stub(channel, service, timeout_s)


class Stub:
    """The methods of a service at the other end of a channel: each takes a request and returns the answer."""

    def __init__(self, channel: grpc.Channel, service: ServiceDescriptor, timeout_s: float | None) -> None:
        for method in service.methods:
            make = channel.unary_stream if method.server_streaming else channel.unary_unary
            call = make(
                f"/{service.full_name}/{method.name}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            setattr(self, _python_name(method), _bounded(call, None if method.server_streaming else timeout_s))


def _bounded(call: Callable[..., Any], timeout_s: float | None) -> Callable[[Any], Any]:
    return lambda request: call(request, timeout=timeout_s)


def _handler(service: ServiceDescriptor, behind: object) -> grpc.GenericRpcHandler:
    methods = {}
    for method in service.methods:
        make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
        behaviour = getattr(behind, _python_name(method))
        methods[method.name] = make(
            behaviour if method.server_streaming else _refusing(behaviour),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=lambda message: message.SerializeToString(),
        )
    return grpc.method_handlers_generic_handler(service.full_name, methods)


def _refusing(behaviour: Callable[..., Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
    """Turn a refusal into one line for the caller; kubelet shows it as an event of the pod."""

    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return behaviour(request, context)
        except VgpurunError as error:
            return context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"vgpurun: {error}")

    return answer


def _python_name(method: MethodDescriptor) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", method.name).lower()


def identity(path: Path) -> tuple[int, int] | None:
    """Return what a file is known by that is made anew under the same name; None where there is none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns
