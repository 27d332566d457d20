"""Captures and graphs."""

from ctypes import byref, c_int, c_uint64, c_void_p

from cuda_driver.constants import CAPTURE_GLOBAL, GRAPH_MEMORY_RESERVED, GRAPH_UPLOAD, STREAM_NON_BLOCKING
from cuda_driver.structures import AllocationNode, GraphUpdate, InstantiateParameters, Location, PoolProperties
from cuda_driver.work import Work


class Capture(list[int]):
    """Work that a block puts into a stream; it then holds the graph.

    No generator: contextlib would be a quarter of the start of hundreds of programs.
    """

    def __init__(self, driver: "Graphs", stream: int, mode: int) -> None:
        self._driver = driver
        self._stream = stream
        self._mode = mode

    def __enter__(self) -> "Capture":
        self._driver.begin_capture(self._stream, self._mode)
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self.append(self._driver.end_capture(self._stream))


class Graphs(Work):
    """Captures, and graphs of launches and of memory."""

    def begin_capture(self, stream: int, mode: int = CAPTURE_GLOBAL) -> None:
        self.call("cuStreamBeginCapture_v2", stream, mode)

    def end_capture(self, stream: int) -> int:
        graph = c_void_p()
        self.call("cuStreamEndCapture", stream, byref(graph))
        return graph.value or 0

    def capture(self, stream: int, mode: int = CAPTURE_GLOBAL) -> Capture:
        return Capture(self, stream, mode)

    def is_capturing(self, stream: int) -> int:
        """0: no, 1: yes, 2: yes, but the capture is invalid."""
        status = c_int()
        self.call("cuStreamIsCapturing", stream, byref(status))
        return status.value

    def exchange_capture_mode(self, mode: int) -> int:
        """Sets this thread's mode and returns the one before."""
        value = c_int(mode)
        self.call("cuThreadExchangeStreamCaptureMode", byref(value))
        return value.value

    def graph_instantiate(self, graph: int, flags: int = 0) -> int:
        executable = c_void_p()
        self.call("cuGraphInstantiateWithFlags", byref(executable), graph, flags)
        return executable.value or 0

    def graph_instantiate_uploaded(self, graph: int, stream: int = 0) -> int:
        executable = c_void_p()
        parameters = InstantiateParameters(flags=GRAPH_UPLOAD, upload_stream=stream)
        self.call("cuGraphInstantiateWithParams", byref(executable), graph, byref(parameters))
        return executable.value or 0

    def graph_update(self, executable: int, graph: int) -> None:
        outcome = GraphUpdate()
        self.call("cuGraphExecUpdate_v2", executable, graph, byref(outcome))

    def graph_upload(self, executable: int, stream: int = 0) -> None:
        self.call("cuGraphUpload", executable, stream)

    def graph(self) -> int:
        graph = c_void_p()
        self.call("cuGraphCreate", byref(graph), 0)
        return graph.value or 0

    def graph_add_alloc(self, graph: int, size_bytes: int, after: int = 0, device: int = 0) -> tuple[int, int]:
        """A node that allocates, after another one; the node and the address."""
        node = c_void_p()
        parameters = AllocationNode(pool=PoolProperties(type=1, location=Location(1, device)), size_bytes=size_bytes)
        before = (c_void_p * 1)(after)
        self.call("cuGraphAddMemAllocNode", byref(node), graph, before, 1 if after else 0, byref(parameters))
        return node.value or 0, parameters.address

    def graph_add_free(self, graph: int, address: int, after: int) -> int:
        node = c_void_p()
        self.call("cuGraphAddMemFreeNode", byref(node), graph, (c_void_p * 1)(after), 1, address)
        return node.value or 0

    def memory_graph(self, *sizes_bytes: int, free: bool = True) -> int:
        """A graph that allocates these, one after the other, each freed before the next unless `free` is false."""
        graph, last = self.graph(), 0
        for size_bytes in sizes_bytes:
            last, address = self.graph_add_alloc(graph, size_bytes, last)
            if free:
                last = self.graph_add_free(graph, address, last)
        return graph

    def graph_run_alloc(self, size_bytes: int, stream: int = 0) -> int:
        """Launches a graph that allocates and does not free; the address is the caller's to free."""
        graph = self.graph()
        _, address = self.graph_add_alloc(graph, size_bytes)
        executable = self.graph_instantiate(graph)
        try:
            self.graph_launch(executable, stream)
        finally:
            self.graph_exec_destroy(executable)
            self.graph_destroy(graph)
        return address

    def graph_memory(self, attribute: int = GRAPH_MEMORY_RESERVED, device: int = 0) -> int:
        value = c_uint64()
        self.call("cuDeviceGetGraphMemAttribute", device, attribute, byref(value))
        return value.value

    def graph_memory_trim(self, device: int = 0) -> None:
        self.call("cuDeviceGraphMemTrim", device)

    def graph_launch(self, executable: int, stream: int = 0) -> None:
        self.call("cuGraphLaunch", executable, stream)

    def graph_destroy(self, graph: int) -> None:
        self.call("cuGraphDestroy", graph)

    def graph_exec_destroy(self, executable: int) -> None:
        self.call("cuGraphExecDestroy", executable)

    def kernel_graph(self, function: int, count: int) -> int:
        """An executable graph of so many launches of a kernel."""
        stream = self.stream(STREAM_NON_BLOCKING)
        with self.capture(stream) as graphs:
            for _ in range(count):
                self.launch(function, stream)
        executable = self.graph_instantiate(graphs[0])
        self.graph_destroy(graphs[0])
        self.stream_destroy(stream)
        return executable
