"""Regions, sleep and wake as Python says them to the C++ part."""

from __future__ import annotations

from stand_in import FakeTorch, Run, Script


def test_tags_and_keeps_reach_the_cpp_part(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    fake_torch.make()
    ask = """
torch = larder.torch
torch.install()
with torch.region("weights"), torch.region("cache", keep="drop"):
    with torch.no_region():
        print("inside")
try:
    with torch.region("z", keep="zero"):
        1 / 0
except ZeroDivisionError:
    pass
print(torch.sleep(["weights", "cache"]))
print(torch.sleep("weights", keep="zero", device=0))
torch.sleep()
torch.wake("weights")
print(torch.sleep_stats(device=2))
torch.set_keep_limit(5)
try:
    torch.wake(device=9)
except RuntimeError as error:
    print("refused:", error)
"""
    done = run_python(script("import larder\n" + ask))
    assert done.stdout.splitlines() == [
        "begin weights 0",
        "begin cache 1",
        "leave  0",
        "inside",
        "return  0",
        "end cache 0",
        "end weights 0",
        "begin z 2",
        "end z 0",
        "sleep weights,cache 13",
        "Slept(asleep_bytes=1, kept_bytes=2, plain_bytes=3)",
        "sleep weights 2",
        "Slept(asleep_bytes=1, kept_bytes=2, plain_bytes=3)",
        "sleep - 13",
        "wake weights 1",
        "SleepStats(asleep_bytes=20, used_bytes=21, kept_bytes=22, spare_bytes=23, generation=24)",
        "limit  15",
        "wake - 9",
        "refused: all sleeps on",
    ], done.stderr


def test_what_makes_no_sense_is_told_before_anything_is_done(
    run_python: Run, script: Script, fake_torch: FakeTorch
) -> None:
    fake_torch.make()
    ask = """
def ask(call, *words, **named):
    try:
        call(*words, **named)
        print("done")
    except Exception as error:
        print(type(error).__name__, error)
torch = larder.torch
ask(torch.sleep)
torch.install()
ask(torch.sleep, keep="disk")
ask(torch.sleep, [])
ask(torch.wake, ["a,b"])
ask(torch.wake, "")
"""
    done = run_python(script("import larder\n" + ask))
    first, *others = done.stdout.splitlines()
    assert first.startswith("InstallError Larder is not installed in this process"), done.stderr
    assert others == [
        "ValueError keep is 'host', 'drop' or 'zero', not 'disk'",
        "ValueError no tag is named; without `tags` all memory is meant",
        "ValueError a tag has a name without a comma, not 'a,b'",
        "ValueError a tag has a name without a comma, not ''",
    ]
