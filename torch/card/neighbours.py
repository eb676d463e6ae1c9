"""CuPy, Numba and RMM in the cache that PyTorch uses, on a card.

    python -m larder neighbours.py [PART ...] [--seed N] [--exchanges N] [--need LIBRARY ...]
    [--limit SECONDS]

What one library gives back serves another on the same stream without a call of the driver, and on
another stream when it may; statistics and snapshots show all; contents are right. sharing.py has
the parts. Each tells its verdict as it ends, and has a limit of its own: what hangs is ended, with
the stacks of all threads, and what follows goes on in a new process. What takes longest runs beside
the others. All together take no longer than --limit, after the C++ part is compiled. A library that
is not there is skipped in a sentence, or a failure if --need names it. A table is printed last, and
the exit status tells whether all of it held. `--policy tight` before the script's name has all of
it run under tight.
"""

import argparse
import faulthandler
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import larder.torch

# How long each part may take at most, in the order in which they run; each of the two rows in
# processes of its own.
ROWS = (
    {
        "serves": 20,
        "waits": 30,
        "statistics": 20,
        "stacks": 20,
        "refuses": 20,
        "streams": 20,
        "callbacks": 20,
        "graphs": 20,
        "exchanges": 40,
        "threads": 40,
    },
    {"ends": 60, "compiles": 90},
)
LIMITS_S = {part: limit_s for row in ROWS for part, limit_s in row.items()}
# Importing them, and compiling a kernel of each.
LIBRARIES_S = 60
# From the last part to the end of the process.
END_S = 20


class Diary:
    """What a process has done so far, in a file, for whoever goes on after its death: a line for
    each thing.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def write(self, kind, **facts):
        with self.path.open("a") as file:
            file.write(json.dumps({"kind": kind, **facts}) + "\n")

    def read(self):
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [json.loads(line) for line in lines]


# In the process that does the work.


class Worker:
    """Runs parts one after the other, each within its limit."""

    def __init__(self, options):
        self.options, self.diary = options, Diary(options.diary)

    def watched(self, part, limit_s):
        """Has the process end, with the stacks of all threads, unless the part ends in time."""
        left_s = self.options.until - time.time()
        self.options.part_limit_s = max(1.0, min(limit_s, left_s))
        faulthandler.dump_traceback_later(self.options.part_limit_s, exit=True)
        self.diary.write("begins", part=part, limit_s=round(self.options.part_limit_s))

    def run(self):
        begin = time.monotonic()
        self.watched("libraries", LIBRARIES_S)
        import libraries

        found, missing = libraries.find(self.options.need)
        names = " and ".join(library.name for library in found)
        under = os.environ.get("LARDER_CONF")
        names += f" under {under}" if under else ""
        self.diary.write("libraries", names=names, missing=missing, has_any=len(found) > 1)
        told = "".join(f"; {name} is {sentence}" for name, sentence, _ in missing)
        print(f"libraries: {names}, {time.monotonic() - begin:.1f} s{told}", flush=True)
        for part in self.options.parts if len(found) > 1 else ():
            self.watched(part, LIMITS_S[part])
            self.run_part(part, found)
        self.watched("its end", END_S)

    def run_part(self, part, found):
        import libraries
        import sharing

        begin = time.monotonic()
        try:
            result, said = "passed", getattr(sharing, part)(found, self.options)
        except sharing.Skipped as why:
            result, said = "skipped", str(why)
        except Exception as error:
            if not isinstance(error, libraries.Failure):
                traceback.print_exc()
            result, said = "FAILED", libraries.first_line(error)
        faulthandler.cancel_dump_traceback_later()
        took_s = time.monotonic() - begin
        self.diary.write("ends", part=part, result=result, said=said)
        print(f"{part}: {result}, {took_s:.1f} s: {said}", flush=True)


# In the process that starts it.


class Supervisor:
    """Has the parts run, by one process after the other where one dies, and keeps what is known of
    each.
    """

    def __init__(self, options, folder):
        self.options, self.folder = options, pathlib.Path(folder)
        self.until = time.time() + options.limit
        self.names, self.rows = "no library", {}

    def run(self):
        wanted = self.options.parts or LIMITS_S
        rows = [
            threading.Thread(target=self.run_row, args=([part for part in row if part in wanted],))
            for row in ROWS
        ]
        for row in rows:
            row.start()
        for row in rows:
            row.join()

    def run_row(self, parts):
        while parts and self.until - time.time() > 1:
            parts = self.run_once(parts)
        for part in parts:
            self.tell(part, "FAILED", f"not run: the {self.options.limit:.0f} s for all were over")

    def run_once(self, parts):
        """One process. What is left to do after it."""
        diary = Diary(self.folder / f"{parts[0]}-{len(parts)}")
        ended = self.wait_for_worker(parts, diary)
        left, current = list(parts), None
        for line in diary.read():
            if line["kind"] == "begins":
                current = line
            elif line["kind"] == "libraries":
                self.take_libraries(line)
                if not line["has_any"]:
                    left = []
            else:
                self.rows[line["part"]] = (line["result"], line["said"])
                left.remove(line["part"])
                current = None
        if ended == 0:
            return left
        part = current["part"] if current else "start"
        limit = f", within {current['limit_s']} s" if current else ""
        self.tell(
            part, "FAILED", f"the process ended in it with {ended}{limit}: what it said is above"
        )
        # Without its libraries there is nothing to go on with.
        return [each for each in left if each != part] if part in left or part == "its end" else []

    def wait_for_worker(self, parts, diary):
        words = [
            "--inside",
            str(diary.path),
            "--until",
            str(self.until),
            "--seed",
            str(self.options.seed),
        ]
        words += ["--exchanges", str(self.options.exchanges), "--steps", str(self.options.steps)]
        if self.options.need:
            words += ["--need", *self.options.need]
        process = subprocess.Popen(
            [sys.executable, "-m", "larder", os.path.abspath(__file__), *parts, *words]
        )
        while True:
            try:
                return process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                if self.is_over(diary):
                    process.kill()
                    return process.wait()

    def is_over(self, diary):
        """Whether a process that should have ended by itself has not: hung where Python is gone, or
        past all limits.
        """
        last = (diary.read() or [{"kind": ""}])[-1]
        ends = last["kind"] == "begins" and last["part"] == "its end"
        return (
            time.time() > self.until + 5
            or ends
            and time.time() > diary.path.stat().st_mtime + END_S + 5
        )

    def take_libraries(self, line):
        self.names = line["names"]
        for name, sentence, is_failure in line["missing"]:
            self.rows[name] = ("FAILED" if is_failure else "skipped", sentence)
        if not line["has_any"]:
            self.rows["all"] = ("FAILED", "none of the libraries is here")

    def tell(self, part, result, said):
        self.rows[part] = (result, said)
        print(f"{part}: {result}: {said}", flush=True)

    def show(self):
        print(f"\n| {self.names} | result | what was seen |\n|---|---|---|")
        order = list(LIMITS_S)
        for part in sorted(self.rows, key=lambda part: order.index(part) if part in order else -1):
            print(f"| {part} | {' | '.join(self.rows[part])} |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=[*LIMITS_S, []])
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument(
        "--exchanges",
        type=int,
        default=1000,
        help="so many blocks pass from one library to another",
    )
    parser.add_argument("--steps", type=int, default=250, help="what each of the threads does")
    parser.add_argument("--need", nargs="*", default=[], choices=["cupy", "numba", "rmm"])
    parser.add_argument("--limit", type=float, default=110, help="seconds for all of it")
    parser.add_argument("--inside", dest="diary", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.diary is not None:
        return Worker(options).run()
    # Once for all, so that no part waits for a compiler.
    larder.torch.compile_backend()
    with tempfile.TemporaryDirectory() as folder:
        supervisor = Supervisor(options, folder)
        supervisor.run()
    supervisor.show()
    raise SystemExit(any(result == "FAILED" for result, _ in supervisor.rows.values()))


if __name__ == "__main__":
    main()
