"""Runs the programs of needs.py on a card, several at a time, and packs their recordings.

    python recordings.py OUT [NAME ...]

writes OUT/recordings.tar, with a gzipped snapshot of each program and what it said, and prints a
line for each. A program that fails is said so and the exit code tells it.
"""

import concurrent.futures
import gzip
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

import needs

HERE = pathlib.Path(__file__).parent
AT_ONCE = 6
LIMIT_S = 140
# These fill most of a card: one of them at a time.
LARGE = ("llama_55", "gpt2_50", "serving_50")


def record(name, folder):
    snapshot = folder / f"{name}.pickle"
    try:
        done = subprocess.run(
            [sys.executable, HERE / "needs.py", name, "--record", snapshot],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=os.environ | {"OMP_NUM_THREADS": "2"},
        )
    except subprocess.TimeoutExpired:
        return name, None, f"took longer than {LIMIT_S} s"
    if done.returncode != 0 or not snapshot.exists():
        return name, None, done.stderr[-1500:]
    with gzip.open(folder / f"{name}.pickle.gz", "wb", compresslevel=9) as out:
        out.write(snapshot.read_bytes())
    snapshot.unlink()
    return name, json.loads(done.stdout.splitlines()[-1]), ""


def record_large(names, folder):
    return [record(name, folder) for name in names]


def main():
    out, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:] or list(needs.PROGRAMS)
    results = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        tarfile.open(out / "recordings.tar", "w") as archive,
    ):
        folder = pathlib.Path(folder)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as crew:
            large = crew.submit(record_large, [name for name in wanted if name in LARGE], folder)
            small = [crew.submit(record, name, folder) for name in wanted if name not in LARGE]
            done = [one.result() for one in concurrent.futures.as_completed(small)]
            done += large.result()
        for name, result, why in done:
            results[name] = result
            print(name, json.dumps(result) if result else f"FAILED {why}", flush=True)
        (folder / "said.json").write_text(json.dumps(results, indent=1))
        for file in sorted(folder.iterdir()):
            archive.add(file, arcname=file.name)
    sys.exit(not all(results.values()))


if __name__ == "__main__":
    main()
