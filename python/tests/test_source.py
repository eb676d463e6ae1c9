"""Sources that are written in Python, and symmetric pools."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import larder

MIB = 1 << 20


class Yard(larder.Source):
    """Memory as a source has it: the lowest free addresses come first. It notes what it is told."""

    def __init__(self, begin: int = 1 << 44, limit: int = 256 * MIB) -> None:
        super().__init__(registrar="a yard")
        self.begin = begin
        self.limit = limit
        self.given: dict[int, int] = {}
        self.told: list[str] = []

    def alloc(self, size: int, stream: int) -> int | None:
        if sum(self.given.values()) + size > self.limit:
            return None
        address = self.begin
        for start in sorted(self.given):
            if start - address >= size:
                break
            address = start + self.given[start]
        self.given[address] = size
        return address

    def free(self, address: int, size: int, stream: int) -> None:
        assert self.given.pop(address) == size

    def init(self, device: int) -> None:
        self.told.append(f"init {device}")

    def reset(self) -> None:
        self.told.append("reset")

    def set_memory_fraction(self, fraction: float) -> None:
        self.told.append(f"fraction {fraction}")
        if fraction == 0.25:
            raise ValueError("a quarter is too little")

    def base_allocation(self, address: int, size: int) -> tuple[int, int] | None:
        return self.begin, self.limit

    def record_stream(self, address: int, size: int, stream: int) -> None:
        self.told.append(f"record {size} {stream}")

    def begin_pool(self, pool: tuple[int, int]) -> None:
        self.told.append("begin")

    def end_pool(self, pool: tuple[int, int]) -> None:
        self.told.append("end")

    def release_pool(self, pool: tuple[int, int]) -> None:
        self.told.append("release")


def test_an_honest_source_keeps_every_promise() -> None:
    yard = Yard()
    assert larder.check_source(yard) == 8
    assert yard.given == {}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda address: 0, "address 0"),
        (lambda address: address + 8, "no multiple of 512"),
        (lambda address: 1 << 44, "which it gave before"),
        (lambda address: None, "out of memory"),
        (lambda address: 1 // 0, "ZeroDivisionError"),
        (lambda address: "here", "TypeError"),
    ],
)
def test_a_source_that_breaks_a_promise_is_told_which(
    spoil: Callable[[int | None], int | None], words: str
) -> None:
    yard = Yard()
    source = larder.Source(
        lambda size, stream: spoil(yard.alloc(size, stream)), lambda *segment: None
    )
    with pytest.raises(larder.Error, match=words):
        larder.check_source(source)


def test_a_source_is_told_what_happens_to_its_pool() -> None:
    allocator, yard = larder.Allocator(), Yard()
    pool = allocator.new_pool(yard)
    with pool:
        address = allocator.malloc(1000)
    allocator.record_stream(address, 7)
    assert allocator.base_allocation(address) == (yard.begin, yard.limit)
    allocator.set_memory_fraction(0.5)
    with pytest.raises(larder.DeviceError, match="a quarter is too little"):
        allocator.set_memory_fraction(0.25)
    assert allocator.memory_fraction() == 0.5
    allocator.empty_cache()
    allocator.free(address)
    assert pool.source_counts() == {
        "made": 1,
        "given_back": 0,
        "refused": 0,
        "failed": 0,
        "held_bytes": 2 * MIB,
    }
    allocator.synchronize(7)
    del pool
    assert yard.given == {}
    assert yard.told == [
        "init 0", "begin", "end", "record 1024 "
                                  "7", "fraction 0.5", "fraction 0.25", "reset", "release",
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", ["raises", "misaligned", "overlaps"])
def test_a_source_that_goes_wrong_leaves_the_allocator_whole(wrong: str) -> None:
    allocator = larder.Allocator()
    taken = allocator.malloc(1000)

    def alloc(size: int, stream: int) -> int:
        if wrong == "raises":
            raise ValueError("no memory today")
        return taken if wrong == "overlaps" else (1 << 44) + 8

    pool = allocator.new_pool(larder.Source(alloc, lambda *segment: None))
    words = {
        "raises": "ValueError: no memory today",
        "misaligned": "no multiple of 512",
        "overlaps": "in use",
    }
    with pool, pytest.raises(larder.Error, match=words[wrong]):
        allocator.malloc(1000)
    allocator.check()
    counts = pool.source_counts()
    assert counts is not None and counts["failed"] == 1 and counts["held_bytes"] == 0


def test_a_source_needs_both_functions() -> None:
    with pytest.raises(TypeError, match="both functions"):
        larder.Source(lambda size, stream: None)


def test_threads_use_a_source_of_python_at_once() -> None:
    allocator, yard = larder.Allocator(), Yard(limit=1 << 40)
    pool = allocator.new_pool(yard)

    def work() -> None:
        for _ in range(200):
            address = allocator.malloc(3 * MIB)
            allocator.free(address)

    with pool:
        pass
    threads = [threading.Thread(target=lambda: in_pool()) for _ in range(4)]
    turn = threading.Lock()

    def in_pool() -> None:
        # A pool has one open scope at a time.
        for _ in range(20):
            with turn, pool:
                addresses = [allocator.malloc(3 * MIB) for _ in range(4)]
            for address in addresses:
                allocator.free(address)
        work()

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "threads wait for each other"
    allocator.check()


class Table:
    """Where ranks, which are threads, say something and hear the others."""

    def __init__(self, ranks: int) -> None:
        self.said: list[bytes] = [b""] * ranks
        self.barrier = threading.Barrier(ranks, timeout=60)

    def exchange(self, rank: int) -> Callable[[bytes], list[bytes]]:
        def gather(said: bytes) -> list[bytes]:
            self.said[rank] = said
            self.barrier.wait()
            heard = list(self.said)
            self.barrier.wait()
            return heard

        return gather


def run_ranks(ranks: int, body: Callable[[int], object]) -> list[object]:
    results: list[object] = [None] * ranks

    def run(rank: int) -> None:
        try:
            results[rank] = body(rank)
        except BaseException as error:  # noqa: BLE001
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_ranks_that_make_the_same_calls_have_the_same_offsets() -> None:
    table = Table(3)

    def rank(number: int) -> list[larder.Position]:
        allocator = larder.Allocator()
        # Elsewhere on each rank, and in another order.
        yard = Yard(begin=(1 << 44) + number * (1 << 40))
        pool = allocator.symmetric_pool(yard, growth=4 * MIB)
        live, positions = [], []
        for step in range(60):
            with pool:
                live.append(allocator.malloc((step % 7 + 1) * 300_000, stream=number))
            positions.append(pool.position_of(live[-1]))
            if step % 3 == 2:
                allocator.free(live.pop(step % len(live)))
        assert pool.seal(table.exchange(number)) == pool.sequence()[0]
        assert len({segment for segment, _, _ in pool.segments()}) > 1
        for address in live:
            allocator.free(address)
        assert pool.trim() > 0
        assert yard.given == {}
        return positions

    first, second, third = run_ranks(3, rank)
    assert isinstance(first, list)
    assert first == second == third


def inner(allocator: larder.Allocator, size: int) -> int:
    return allocator.malloc(size)


def test_a_rank_that_differs_is_named_with_its_stack() -> None:
    table = Table(3)

    def rank(number: int) -> None:
        allocator = larder.Allocator()
        allocator.record_history()
        pool = allocator.symmetric_pool(Yard())
        with pool:
            for _ in range(20):
                allocator.malloc(512)
            inner(allocator, 4096 if number == 1 else 512)
            allocator.malloc(512)
        pool.seal(table.exchange(number))

    for error in run_ranks(3, rank):
        assert isinstance(error, larder.DivergenceError)
        assert (error.call, error.odd_ranks) == (21, [1])
        assert [said for said, _ in error.ranks] == ["request 512", "request 4096", "request 512"]
        assert "inner (" in error.ranks[1][1] and "test_source.py" in error.ranks[1][1]
        assert "part at call 21" in str(error)


def test_what_an_exchange_raises_goes_on() -> None:
    pool = larder.Allocator().symmetric_pool(Yard())
    with pytest.raises(ZeroDivisionError):
        pool.seal(lambda said: [bytes([1 // 0])])
    with pytest.raises(larder.ExchangeError, match="what this rank had said itself"):
        pool.seal(lambda said: [])
    assert pool.seal(lambda said: [said, said]) == 1


def test_what_would_break_the_symmetry_is_refused() -> None:
    allocator = larder.Allocator()
    pool = allocator.symmetric_pool(Yard())
    with pytest.raises(larder.PoolError, match="symmetric"):
        pool.set_use_on_oom(True)
    with pytest.raises(larder.PoolError, match="symmetric"):
        pool.checkpoint()
    with pytest.raises(larder.PoolError, match="not symmetric"):
        allocator.new_pool().sequence()
