"""Compares two pickles as Python reads them, and says where they part."""

import gzip, pickle, sys


def load(name):
    with (gzip.open if name.endswith(".gz") else open)(name, "rb") as file:
        return pickle.load(file)


def part(one, other, place):
    if type(one) is not type(other):
        return f"{place}: {type(one)} became {type(other)}"
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return f"{place}: the keys {sorted(one)} became {sorted(other)}"
        return next(filter(None, (part(one[k], other[k], f"{place}[{k!r}]") for k in one)), None)
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f"{place}: {len(one)} items became {len(other)}"
        pairs = enumerate(zip(one, other))
        return next(filter(None, (part(a, b, f"{place}[{i}]") for i, (a, b) in pairs)), None)
    return None if one == other else f"{place}: {one!r} became {other!r}"


found = part(load(sys.argv[1]), load(sys.argv[2]), "snapshot")
if found:
    sys.exit(found)
