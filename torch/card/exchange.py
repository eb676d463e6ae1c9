"""Random requests of all libraries at once, on several streams and by several threads, whose
contents are all checked.
"""

import collections
import queue
import random
import threading
import time

import torch

from libraries import expect

MIB = 1 << 20


class Contents:
    """What streams have copied to the host, to be compared once it is there."""

    # So many copies wait at most.
    WAITING = 32

    def __init__(self):
        self.waiting, self.wrong, self.blocks = collections.deque(), 0, 0

    def read(self, words, value, stream):
        """Has the stream read the words, which all should have this value."""
        copy = torch.empty(words.numel(), dtype=torch.int64, pin_memory=True)
        with torch.cuda.stream(stream):
            copy.copy_(words, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
        self.waiting.append((done, copy, value))
        while len(self.waiting) > self.WAITING or self.waiting and self.waiting[0][0].query():
            self.compare()

    def compare(self):
        done, copy, value = self.waiting.popleft()
        done.synchronize()
        self.wrong += int((copy != value).sum())
        self.blocks += 1

    def finish(self):
        while self.waiting:
            self.compare()
        return self.wrong


class Exchange:
    """Random requests of all libraries on some streams; who had the memory before is remembered."""

    # Of some writes and reads the stream is late by up to so many cycles, which are two
    # milliseconds.
    LATE = 4_000_000
    LIVE = 24

    def __init__(self, libraries, seed, streams, largest=2 * MIB):
        self.libraries, self.chance, self.largest = libraries, random.Random(seed), largest
        self.streams = streams
        self.contents = Contents()
        self.live, self.last = [], {}
        self.passed = collections.Counter()

    def step(self):
        if not self.live or len(self.live) < self.LIVE and self.chance.random() < 0.55:
            self.make()
        else:
            self.check_and_drop()

    def make(self):
        library, at = self.chance.choice(self.libraries), self.chance.randrange(len(self.streams))
        words = self.chance.choice(
            (self.chance.randrange(1, 4096), self.chance.randrange(1, self.largest // 8))
        )
        value, stream = self.chance.randrange(1, 1 << 40), self.streams[at]
        made = library.make(8 * words, stream)
        former = self.last.pop(library.address(made), None)
        if former not in (None, library.name):
            self.passed[f"{former} to {library.name}"] += 1
        self.delay(stream, 0.05)
        library.fill(made, value, stream)
        self.live.append((library, made, at, value))

    def check_and_drop(self):
        """Reads on the block's own stream, or on another one, which is recorded; the block goes
        before that is done.
        """
        library, made, at, value = self.live.pop(self.chance.randrange(len(self.live)))
        reader = self.chance.randrange(len(self.streams)) if self.chance.random() < 0.4 else at
        if reader != at:
            self.streams[reader].wait_stream(self.streams[at])
        self.delay(self.streams[reader], 0.25)
        self.contents.read(library.words(made), value, self.streams[reader])
        if reader != at:
            library.record_stream(made, self.streams[reader])
        self.last[library.address(made)] = library.name

    def delay(self, stream, probability):
        if self.chance.random() < probability:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(self.chance.randrange(self.LATE))

    def finish(self):
        while self.live:
            self.check_and_drop()
        return self.contents.finish()


def run(libraries, seed, wanted, limit_s):
    """Exchanges until so many blocks had another library's memory; how it went."""
    streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(3))]
    exchange = Exchange(libraries, seed, streams)
    until = time.monotonic() + limit_s
    while sum(exchange.passed.values()) < wanted and time.monotonic() < until:
        exchange.step()
    wrong = exchange.finish()
    torch.cuda.synchronize()
    return exchange, wrong


class Worker(threading.Thread):
    """Exchanges on a stream of its own, for so many steps or so long. Some of what it has, others
    give back.
    """

    def __init__(self, libraries, seed, steps, until, given):
        super().__init__(daemon=True)
        self.steps, self.until, self.given, self.error = steps, until, given, None
        self.exchange = Exchange(libraries, seed, [torch.cuda.Stream()], largest=MIB)

    def run(self):
        try:
            self.work()
        except BaseException as error:
            self.error = error

    def work(self):
        chance = self.exchange.chance
        for _ in range(self.steps):
            # A card that others keep busy makes fewer steps of it, and is no failure.
            if time.monotonic() > self.until:
                break
            self.exchange.step()
            if self.exchange.live and chance.random() < 0.1:
                self.give()
            if chance.random() < 0.1:
                self.take()
        self.wrong = self.exchange.finish()

    def give(self):
        library, made, _, value = self.exchange.live.pop()
        self.exchange.contents.read(library.words(made), value, self.exchange.streams[0])
        self.given.put(made)

    def take(self):
        """What another thread took, and whose work is on that one's stream, goes back here."""
        try:
            self.given.get_nowait()
        except queue.Empty:
            pass


def run_threads(libraries, seed, count, steps, limit_s, meanwhile):
    """Workers side by side, while the calling thread does something over and over; blocks checked,
    and words wrong.
    """
    given = queue.SimpleQueue()
    until = time.monotonic() + limit_s
    workers = [
        Worker(libraries, seed + number, steps, until - limit_s / 2, given)
        for number in range(count)
    ]
    for worker in workers:
        worker.start()
    times = 0
    while any(worker.is_alive() for worker in workers) and time.monotonic() < until:
        meanwhile()
        times += 1
    late = sum(worker.is_alive() for worker in workers)
    expect(not late, f"seed {seed}: {late} of {count} threads have not ended after {limit_s} s")
    for worker in workers:
        if worker.error is not None:
            raise worker.error
    while not given.empty():
        given.get()
    torch.cuda.synchronize()
    return (
        sum(worker.exchange.contents.blocks for worker in workers),
        sum(worker.wrong for worker in workers),
        times,
    )
