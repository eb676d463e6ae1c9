"""Memory that libraries can export where nobody set anything: what graphs work on, and what is
asked for as such.
"""

import unittest

from allocator_case import AllocatorCase, output_of, start_child

CHILD = """
import contextlib, sys, torch
larder = sys.modules.get("larder")
is_larder = larder and larder.torch.is_installed()
plain_memory = larder.torch.plain_memory if is_larder else contextlib.nullcontext

def segment_of(tensor):
    for segment in torch.cuda.memory_snapshot():
        if segment["address"] <= tensor.data_ptr() < segment["address"] + segment["total_size"]:
            return segment

def byte_tensors(*sizes):
    return [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]

def all_plain(tensors):
    return not any(segment_of(tensor)["is_expandable"] for tensor in tensors)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    captured = byte_tensors(256, 3 << 20, 30 << 20)
    captured.append(torch.zeros(1, device="cuda"))
print("graph", all_plain(captured))
with plain_memory():
    asked_for = byte_tensors(256, 512, 3 << 20, 30 << 20)
print("asked for", all_plain(asked_for))
first, second = (segment_of(tensor)["address"] for tensor in asked_for[:2])
print("cut from one segment", first == second)
held = torch.cuda.memory_reserved()
del asked_for
torch.cuda.empty_cache()
print("given back", held - torch.cuda.memory_reserved() >= 30 << 20)
"""


class ExportableTest(AllocatorCase):
    def said_with(self, conf):
        return output_of(
            start_child(CHILD, PYTORCH_CUDA_ALLOC_CONF=conf, PYTORCH_ALLOC_CONF=None)
        ).splitlines()

    def test_with_no_settings_graphs_and_whoever_asks_have_plain_memory(self):
        expected = ["graph True", "asked for True", "cut from one segment True", "given back True"]
        self.assertEqual(self.said_with(None), expected)

    def test_who_asks_for_expandable_segments_has_them_in_graphs_too(self):
        self.assertEqual(self.said_with("expandable_segments:True")[0], "graph False")


if __name__ == "__main__":
    unittest.main()
