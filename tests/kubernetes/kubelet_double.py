"""A kubelet as far as device plugins see it: its sockets, its record, and how it gives devices to containers.

The order of its steps follows Kubernetes 1.34's device manager: resources of a container in random order, for each
first the plugin's preference and then Allocate; the record is written when a container has everything; what a pod that
is gone had is free at the next admission; and before a container starts, PreStartContainer for each of its resources.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from vgpurun.kubernetes import rpc
from vgpurun.kubernetes.proto import deviceplugin_pb2 as api

SERVICES = api.DESCRIPTOR.services_by_name
RECORD = "kubelet_internal_checkpoint"


class RefusedError(Exception):
    """A pod was not admitted, or a container not started; the message is what its event would say."""


@dataclass
class Plugin:
    """A registered plugin."""

    request: api.RegisterRequest
    channel: grpc.Channel
    stub: Any
    options: api.DevicePluginOptions
    devices: dict[str, api.Device] = field(default_factory=dict)
    updates: int = 0
    is_connected: bool = True

    @property
    def healthy(self) -> set[str]:
        return {name for name, each in self.devices.items() if each.health == "Healthy" and self.is_connected}


@dataclass
class Given:
    """A container's units of one resource, and the plugin's answer."""

    ids: frozenset[str]
    answer: api.ContainerAllocateResponse


class Kubelet:
    """A node's kubelet."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.plugins: dict[str, Plugin] = {}
        self.containers: dict[tuple[str, str], dict[str, Given]] = {}
        self.gone: set[str] = set()
        self.registrations: list[str] = []
        self.asks_preference = True
        self._changed = threading.Condition()
        self._server: rpc.Server | None = None

    def start(self, cleans_up: bool = True) -> None:
        """Start as kubelet does: every socket in the folder goes, the record stays."""
        for entry in self.folder.iterdir():
            if cleans_up and entry.name != RECORD:
                entry.unlink()
        self._server = rpc.Server(self.folder / "kubelet.sock", (SERVICES["Registration"], self))

    def stop(self) -> None:
        assert self._server is not None
        for plugin in self.plugins.values():
            plugin.channel.close()
        self.plugins.clear()
        self._server.stop(0)

    def restart(self, cleans_up: bool = True) -> None:
        """Start again: it knows its containers from its record."""
        self.stop()
        self.registrations.clear()
        entries = json.loads((self.folder / RECORD).read_bytes())["Data"]["PodDeviceEntries"]
        self.containers.clear()
        for entry in entries:
            ids = frozenset(each for ids in entry["DeviceIDs"].values() for each in ids)
            answer = api.ContainerAllocateResponse.FromString(bytes.fromhex(entry["AllocResp"]))
            self.containers.setdefault((entry["PodUID"], entry["ContainerName"]), {})[entry["ResourceName"]] = Given(
                ids, answer
            )
        self.start(cleans_up)

    def register(self, request: api.RegisterRequest, _: grpc.ServicerContext) -> api.Empty:
        """Registration.Register: the plugin must be serving already."""
        assert request.version == "v1beta1" and "/" not in request.endpoint
        channel = grpc.insecure_channel(f"unix:{self.folder / request.endpoint}")
        stub = rpc.Stub(channel, SERVICES["DevicePlugin"], 10)
        plugin = Plugin(request, channel, stub, stub.get_device_plugin_options(api.Empty()))
        threading.Thread(target=self._watch, args=(plugin,), daemon=True).start()
        with self._changed:
            if old := self.plugins.get(request.resource_name):
                old.channel.close()
            self.plugins[request.resource_name] = plugin
            self.registrations.append(request.resource_name)
            self._changed.notify_all()
        return api.Empty()

    def _watch(self, plugin: Plugin) -> None:
        try:
            for update in plugin.stub.list_and_watch(api.Empty()):
                with self._changed:
                    plugin.devices = {device.ID: device for device in update.devices}
                    plugin.updates += 1
                    self._changed.notify_all()
        except (grpc.RpcError, ValueError):  # the plugin ended, or we closed the channel
            pass
        with self._changed:
            plugin.is_connected = False
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], Any], what: str, timeout_s: float = 30) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout_s), f"no {what} within {timeout_s} s"

    def wait_for_resources(self, *names: str) -> None:
        """Until all these resources are registered and their devices known."""
        self.wait_for(
            lambda: all(name in self.plugins and self.plugins[name].healthy for name in names), f"{', '.join(names)}"
        )

    def admit(self, pod: str, containers: Mapping[str, Mapping[str, int]]) -> None:
        """Give a pod's containers what they ask for. Raises RefusedError, and then the pod has nothing."""
        for step in self.admission(pod, containers):
            step()

    def admission(self, pod: str, containers: Mapping[str, Mapping[str, int]]) -> list[Callable[[], None]]:
        """The steps of an admission: one for each resource, and one at the end of each container."""
        self._forget_gone()
        steps: list[Callable[[], None]] = []
        for container, resources in containers.items():
            order = list(resources.items())
            self.random.shuffle(order)
            steps += [lambda c=container, r=name, n=count: self._give(pod, c, r, n) for name, count in order]
            steps.append(self.write_record)
        return steps

    def give(self, pod: str, resource: str, ids: Iterable[str], container: str = "c") -> None:
        """Give a container just these devices, whatever the plugin prefers."""
        given = Given(frozenset(ids), self.allocate(resource, ids))
        self.containers.setdefault((pod, container), {})[resource] = given

    def _give(self, pod: str, container: str, resource: str, count: int) -> None:
        plugin = self.plugins[resource]
        taken = {each for given in self.containers.values() if resource in given for each in given[resource].ids}
        available = sorted(plugin.healthy - taken)
        try:
            if len(available) < count:
                raise RefusedError(f"{count} of {resource} asked for, {len(available)} free")
            self.random.shuffle(available)
            chosen = available[:count]
            if self.asks_preference and plugin.options.get_preferred_allocation_available:
                chosen = self._preferred(plugin, available, count) or chosen
            given = Given(frozenset(chosen), self.allocate(resource, chosen))
        except RefusedError:
            self.evict(pod)
            self._forget_gone()
            raise
        self.containers.setdefault((pod, container), {})[resource] = given

    def _preferred(self, plugin: Plugin, available: list[str], count: int) -> list[str]:
        one = api.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=count)
        request = api.PreferredAllocationRequest(container_requests=[one])
        answer = _asked(plugin.stub.get_preferred_allocation, request)
        preferred = [each for each in answer.container_responses[0].deviceIDs if each in available]
        return preferred if len(preferred) == count else []

    def allocate(self, resource: str, ids: Iterable[str]) -> api.ContainerAllocateResponse:
        """Call Allocate with whatever ids."""
        request = api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=ids)])
        return _asked(self.plugins[resource].stub.allocate, request).container_responses[0]

    def start_container(self, pod: str, container: str) -> list[api.ContainerAllocateResponse]:
        """Do what precedes the making of a container. Returns the plugins' answers, merged as kubelet would."""
        given = list(self.containers[pod, container].items())
        self.random.shuffle(given)
        for resource, each in given:
            plugin = self.plugins[resource]
            if plugin.options.pre_start_required:
                _asked(plugin.stub.pre_start_container, api.PreStartContainerRequest(devices_ids=each.ids))
        return [each.answer for _, each in given]

    def evict(self, pod: str) -> None:
        """A pod is gone. The record goes on having it until something is admitted."""
        self.gone.add(pod)

    def _forget_gone(self) -> None:
        self.containers = {key: given for key, given in self.containers.items() if key[0] not in self.gone}

    def write_record(self) -> None:
        entries = [
            {
                "PodUID": pod,
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": {"-1": sorted(each.ids)},
                "AllocResp": each.answer.SerializeToString().hex(),
            }
            for (pod, container), given in self.containers.items()
            for resource, each in given.items()
        ]
        data = {"PodDeviceEntries": entries, "RegisteredDevices": {name: [] for name in self.plugins}}
        half_made = self.folder / ".checkpoint"
        half_made.write_text(json.dumps({"Data": data, "Checksum": 1}))
        half_made.replace(self.folder / RECORD)


def _asked(method: Callable[[Any], Any], request: Any) -> Any:
    try:
        return method(request)
    except grpc.RpcError as error:
        raise RefusedError(error.details()) from None
