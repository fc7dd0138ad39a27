"""A GPU made of numpy memory, which enforces what CUDA's documentation asks of its user.

Work given to a stream is done when the stream is synchronized, not before, so that whoever reads
too early reads garbage, and whoever frees or changes memory too early is told.  Addresses are never
given twice: one of freed memory is always known as that.

A broken rule raises :class:`BrokenRule`, which no code of the project catches; in a destructor,
where nothing can be raised, it is noted in :attr:`FakeDevice.broken`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from stateful_pipeline.errors import TargetError

ALIGNMENT = 256
_UNWRITTEN, _FREED, _PENDING = 0xCD, 0xDB, 0xA5

_in_use = []  # the devices that are current, the innermost last


class BrokenRule(Exception):  # noqa: N818
    """CUDA or TensorRT was used in a way whose outcome is not defined."""


def current_device():
    """Return the device that is current, or None."""
    return _in_use[-1] if _in_use else None


@dataclass(eq=False)
class Block:
    """Memory that was allocated: its first address, and its bytes."""

    address: int
    data: np.ndarray
    on_host: bool
    freed: bool = False
    owner: object = None  # keeps the memory of the host, so that its address is never used again


@dataclass(eq=False)
class Work:
    """What a stream is to do: a function, and the blocks that it reads and writes."""

    do: object
    reads: tuple = ()
    writes: tuple = ()
    context: object = None


@dataclass(frozen=True)
class Copy:
    """A copy between host and device."""

    to_device: bool
    address: int
    size: int


@dataclass(eq=False)
class Stream:
    number: int
    work: list = field(default_factory=list)
    closed: bool = False


class FakeDevice:
    """See the module.

    Attributes:
        copies: The copies between host and device that were done.
        broken: The rules that were broken where nothing can be raised.
    """

    def __init__(self, capability="8.9", memory=1 << 30):
        self.capability = capability
        self.copies = []
        self.broken = []
        self._free = memory
        self._blocks = []
        self._next = 0x7F00_0000_0000
        self._streams = {}
        self._failing = None

    # What the Device protocol asks for.

    @contextlib.contextmanager
    def current(self):
        _in_use.append(self)
        try:
            yield
        finally:
            _in_use.pop()

    def open_stream(self):
        self._must_be_current("cudaStreamCreateWithFlags")
        number = 0x1000 + len(self._streams)
        self._streams[number] = Stream(number)
        return number

    def close_stream(self, stream):
        found = self.stream(stream)
        self.require(not found.work, "a stream is destroyed when its work is done")
        found.closed = True

    def synchronize(self, stream):
        self._must_be_current("cudaStreamSynchronize")
        found = self.stream(stream)
        while found.work:
            work = found.work[0]
            try:
                work.do()
            except BaseException:
                found.work.clear()
                raise
            found.work.pop(0)

    def allocate(self, size):
        """Give device memory (CUDA Runtime API, cudaMalloc: aligned for any kind of variable)."""
        self._must_be_current("cudaMalloc")
        self.require(size > 0, "memory of no bytes has no address of its own")
        if size > self._free:
            raise TargetError("CUDA: cudaMalloc failed: out of memory (error 2)")
        self._free -= size
        block = Block(self._next, np.full(size, _UNWRITTEN, np.uint8), on_host=False)
        self._next += (size // ALIGNMENT + 2) * ALIGNMENT
        self._blocks.append(block)
        return block.address

    def free(self, address):
        self._free += self._give_back(address, on_host=False)

    def allocate_host(self, size):
        self._must_be_current("cudaMallocHost")
        owner = np.full(size + ALIGNMENT, _UNWRITTEN, np.uint8)
        data = owner[-owner.ctypes.data % ALIGNMENT :][:size]
        self._blocks.append(Block(data.ctypes.data, data, on_host=True, owner=owner))
        return data

    def free_host(self, memory):
        self._give_back(memory.ctypes.data, on_host=True)

    def upload(self, address, array, stream):
        target = self.span(address, array.nbytes, on_host=False)
        source = self._host_block(array)
        # What the stream itself writes first, it copies as it is then.
        written = any(source in work.writes for work in self.stream(stream).work)
        before = None if written else array.tobytes()

        def do():
            self.require(
                before in (None, array.tobytes()),
                "the host's memory stays as it is until the stream has copied it (CUDA Runtime "
                "API, cudaMemcpyAsync)",
            )
            target[...] = np.frombuffer(array.tobytes(), np.uint8)
            self.copies.append(Copy(True, address, array.nbytes))

        self.add(stream, do, reads=[source], writes=[self.block(address)])

    def download(self, array, address, stream):
        source = self.span(address, array.nbytes, on_host=False)
        target = array.reshape(-1).view(np.uint8)
        self.require(np.shares_memory(target, array) or not array.size, "a copy needs one piece")
        target[...] = _PENDING

        def do():
            target[...] = source
            self.copies.append(Copy(False, address, array.nbytes))

        self.add(stream, do, reads=[self.block(address)], writes=[self._host_block(array)])

    # What the stand-in for TensorRT and the tests use.

    def stream(self, number):
        found = self._streams.get(number)
        self.require(found is not None and not found.closed, f"{number} is no stream")
        return found

    def add(self, number, do, reads=(), writes=(), context=None):
        """Give work to a stream, if no other stream is busy with the memory that it uses."""
        self._must_be_current("work for a stream")
        stream = self.stream(number)
        reads, writes = ([b for b in blocks if b is not None] for blocks in (reads, writes))
        for other in self._streams.values():
            for work in other.work if other is not stream else ():
                clash = {*reads, *writes}.intersection(work.writes) or {*writes} & {*work.reads}
                self.require(
                    not clash,
                    "memory that a stream writes is not used by another before it is synchronized "
                    "(CUDA C++ Programming Guide, Asynchronous Concurrent Execution)",
                )
        stream.work.append(Work(do, tuple(reads), tuple(writes), context))

    def work(self):
        """Yield what streams still have to do, with the number of the stream."""
        for stream in self._streams.values():
            for work in stream.work:
                yield stream.number, work

    def block(self, address):
        """Return the live block that an address lies in.

        Blocks of no bytes cannot be: see ``reserve``.
        """
        for block in self._blocks:
            if block.address <= address < block.address + max(block.data.size, 1):
                self.require(
                    not block.freed, "freed memory is not used again (CUDA Runtime API, cudaFree)"
                )
                return block
        raise BrokenRule(f"{address:#x} is an address of no memory")

    def span(self, address, size, on_host):
        """Return ``size`` bytes from an address on."""
        block = self.block(address)
        where = "the host" if on_host else "the device"
        self.require(block.on_host == on_host, f"{address:#x} is not memory of {where}")
        first = address - block.address
        self.require(
            first + size <= block.data.size,
            f"{size} bytes are used, and there is room for {block.data.size - first}",
        )
        return block.data[first : first + size]

    def look(self, address, size):
        """Read device memory at once, as cudaMemcpy on the default stream would."""
        block = self.block(address)
        busy = any(block in work.writes for _, work in self.work())
        self.require(
            not busy,
            "memory is not read while a stream writes it: execute_async_v3 is asynchronous, and "
            "'output tensors require stream synchronization' (IExecutionContext.execute_async_v3)",
        )
        return self.span(address, size, block.on_host).copy()

    def live(self):
        """Return how many blocks and streams were not given back."""
        streams = sum(not stream.closed for stream in self._streams.values())
        return Counter(
            host=sum(b.on_host and not b.freed for b in self._blocks),
            device=sum(not b.on_host and not b.freed for b in self._blocks),
            streams=streams,
        )

    def fail_next_step(self, message="an illegal memory access was encountered (error 700)"):
        """Let the next step break off in the middle of its writing."""
        self._failing = message

    def take_failure(self):
        """Return why the step is to break off, or None."""
        message, self._failing = self._failing, None
        return message

    def note(self, rule):
        """Note a broken rule where nothing can be raised."""
        self.broken.append(rule)

    @staticmethod
    def require(holds, rule):
        if not holds:
            raise BrokenRule(rule)

    def _must_be_current(self, call):
        self.require(
            current_device() is self,
            f"{call} is of the current device (CUDA Runtime API, cudaSetDevice), which is another",
        )

    def _give_back(self, address, on_host):
        block = self.block(address)
        self.require(
            block.address == address and block.on_host == on_host,
            "memory is freed at its first address, by the function of its kind",
        )
        busy = any(block in (*work.reads, *work.writes) for _, work in self.work())
        self.require(
            not busy,
            "memory is not released while a stream uses it: 'modifying or releasing memory that "
            "has been registered for the tensors before stream synchronization' is undefined "
            "(IExecutionContext.execute_async_v3)",
        )
        block.freed = True
        block.data[...] = _FREED
        return block.data.size

    def _host_block(self, array):
        """Return the page-locked block in which an array lies, if it does."""
        address = array.ctypes.data
        for block in self._blocks:
            inside = block.address <= address < block.address + block.data.size
            if block.on_host and not block.freed and inside:
                return block
        return None
