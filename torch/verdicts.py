"""What becomes of each test of some files, one by one, whichever allocator is below.

    python torch/verdicts.py OUT [-k WORD]... FILE...

writes a line `VERDICT NAME` into OUT for each test: passed, failed, skipped, or ended (the process
did). Each file runs in a process of its own, and goes on in another behind a test that ended one or
took too long. Children of `python -m larder torch/verdicts.py …` run on Larder as well.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time
import unittest

# More than any test needs on a busy machine.
FILE_TIMEOUT_S = 1200
# A test that takes longer is named.
SLOW_S = 5


class Writer(unittest.TestResult):
    """Writes each verdict down at once, since the next test may end the process."""

    def __init__(self, out):
        super().__init__()
        self.out = out
        self.verdict = None
        self.began_s = 0

    def write(self, word, test):
        print(word, test.id(), file=self.out, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.verdict = "passed"
        self.began_s = time.monotonic()
        self.write("started", test)

    def stopTest(self, test):
        super().stopTest(test)
        self.write(self.verdict, test)
        took_s = time.monotonic() - self.began_s
        if took_s > SLOW_S:
            print(f"{test.id()} took {took_s:.1f} s", file=sys.stderr, flush=True)

    def addFailure(self, test, err):
        self.verdict = "failed"
        print(self._exc_info_to_string(err, test), file=sys.stderr, flush=True)

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.addFailure(test, err)

    def addSkip(self, test, reason):
        self.verdict = "skipped"

    def addExpectedFailure(self, test, err):
        self.verdict = "failed"

    def addUnexpectedSuccess(self, test):
        self.verdict = "passed"


def tests_in(suite):
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from tests_in(part)
        else:
            yield part


def run_here(file, out, done, words):
    """Runs the tests of a file that are not done yet."""
    sys.path.insert(0, str(file.parent))
    # PyTorch's own tests read the command line.
    sys.argv = [str(file)]
    suite = unittest.defaultTestLoader.loadTestsFromName(file.stem)
    left = [test for test in tests_in(suite) if test.id() not in done]
    if words:
        left = [test for test in left if any(word in test.id() for word in words)]
    with open(out, "a") as writer:
        unittest.TestSuite(left).run(Writer(writer))


def verdicts(out):
    """The last that was said of each test: one that was only started ended its process."""
    last = {}
    if os.path.exists(out):
        for line in open(out):
            word, name = line.rstrip("\n").split(" ", 1)
            last[name] = "ended" if word == "started" else word
    return last


def run_file(file, out, words):
    """Runs a file to its end, in as many processes as it takes."""
    while True:
        before = verdicts(out)
        child = [sys.executable, os.path.abspath(__file__), out, "--here", str(file)]
        for word in words:
            child += ["-k", word]
        try:
            status = subprocess.run(child, timeout=FILE_TIMEOUT_S).returncode
        except subprocess.TimeoutExpired:
            status = "it took too long"
        after = verdicts(out)
        if status == 0 or len(after) == len(before):
            if status != 0:
                print(f"{file}: {status}", file=sys.stderr)
            return


def settle(out):
    """Leaves a line for each test."""
    lines = [f"{word} {name}\n" for name, word in sorted(verdicts(out).items())]
    pathlib.Path(out).write_text("".join(lines))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "-k", action="append", default=[], metavar="WORD", help="tests with this in their names"
    )
    parser.add_argument("out")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    asked = parser.parse_intermixed_args()
    files = [file.resolve() for file in asked.files]
    if asked.here:
        run_here(files[0], asked.out, verdicts(asked.out), asked.k)
        return
    for file in files:
        run_file(file, asked.out, asked.k)
    settle(asked.out)


if __name__ == "__main__":
    main()
