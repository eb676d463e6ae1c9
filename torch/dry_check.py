"""Runs the programs of card/needs.py dry and compares them with what an H200 was asked for.

    LARDER_DRYRUN_FOLDER=FOLDER python torch/dry_check.py OUT [NAME ...]

card/needs.json has of each program, from a recording on the card: the most that was in use and
held, how many requests there were, and a digest of all of them in order. The exit code tells
whether each program is as near as NEAR says.
"""

import gzip
import hashlib
import json
import pathlib
import pickle
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
KNOWN = json.loads((HERE / "card/needs.json").read_text())
OPTIONS = {
    "mixture_of_experts": ["--assume", "nonzero=0.125"],
    "fsdp2": ["--rank", "0", "--of", "8"],
}
# Programs whose requests differ, why, and how far in and held may be off, in parts of a thousand.
NEAR = {
    "unet": ("convolution workspaces", 5, 15),
    "resnet_varbatch": ("convolution workspaces", 5, 5),
    "vision_transformer": ("one convolution's workspace", 1, 5),
    "mixture_of_experts": ("the share of tokens is assumed", 30, 60),
    "prefetch_streams": ("when events are done is a model", 100, 5),
    "side_stream_ring": ("when events are done is a model", 30, 5),
    "cuda_graphs": ("when events are done is a model", 1, 5),
    "llama_generate": ("where the driver put the first segments", 1, 5),
    "llama_lora": ("where the driver put the first segments", 1, 5),
}


def need(path):
    """What a recording has of a program."""
    with gzip.open(path) as file:
        trace = max(pickle.load(file)["device_traces"], key=len)
    streams, asked = {}, []
    active = held = most_active = most_held = 0
    for entry in trace:
        action, size = entry["action"], entry["size"]
        stream = streams.setdefault(entry["stream"], len(streams))
        if action == "alloc":
            asked.append(("a", size, stream))
            active += size
            most_active = max(most_active, active)
        elif action == "oom":
            asked.append((action, size, stream))
        elif action == "free_completed":
            active -= size
        elif action in ("segment_alloc", "segment_map"):
            held += size
            most_held = max(most_held, held)
        elif action in ("segment_free", "segment_unmap"):
            held -= size
    text = "".join(f"{what} {size} {stream}\n" for what, size, stream in asked)
    return {
        "active": most_active,
        "reserved": most_held,
        "requests": sum(what == "a" for what, _, _ in asked),
        "digest": hashlib.sha256(text.encode()).hexdigest()[:16],
    }


def off(dry, card, key):
    return 1000 * (dry[key] / card[key] - 1)


def judge(name, dry):
    """Whether it is near enough, and the words for it."""
    card = KNOWN[name]
    if dry == card:
        return True, "the same, every request in order"
    words = [
        f"{key} {dry[key]} for {card[key]} ({off(dry, card, key):+.2f} of a thousand)"
        for key in ("active", "reserved")
        if dry[key] != card[key]
    ]
    if dry["digest"] == card["digest"]:
        words.append("every request the same")
    else:
        words.append(f"requests {dry['requests']} for {card['requests']}")
    why, active, held = NEAR.get(name, ("", 0, 0))
    fits = (
        name in NEAR
        and abs(off(dry, card, "active")) <= active
        and abs(off(dry, card, "reserved")) <= held
    )
    return fits, "; ".join(words) + (f" [{why}]" if why else "")


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in sys.argv[2:] or KNOWN:
        recording, begin = out / f"{name}.pickle.gz", time.monotonic()
        recording.unlink(missing_ok=True)
        command = [sys.executable, "-m", "larder.dryrun", "--card", "H200", "--out", recording]
        command += [*OPTIONS.get(name, ()), HERE / "card/needs.py", name]
        with open(out / f"{name}.log", "w") as log:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
        fits, words = False, f"exit code {code}: {out / name}.log says why"
        if recording.exists() and code in (0, 4):
            fits, words = judge(name, need(recording))
        print(
            f"{'ok' if fits else 'NO'} {name}: {words}; {time.monotonic() - begin:.0f} s",
            flush=True,
        )
        if not fits:
            failed.append(name)
    print(f"{len(failed)} programs are not what the card was asked for: {failed}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
