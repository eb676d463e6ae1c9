"""What a C++ program sees: the calls of the allocator that Python does not reach."""

import ctypes
import glob
import os
import shutil
import subprocess
import tempfile
import unittest

import torch

from allocator_case import MIB, AllocatorCase, byte_tensor, filled, holds

SOURCE = """
#include <c10/cuda/CUDACachingAllocator.h>
#include <atomic>
#include <vector>

namespace native = c10::cuda::CUDACachingAllocator;

static std::atomic<int> counts[9];
static std::vector<c10::DataPtr> held;

extern "C" {
void attach_tracker() {
  native::attachAllocatorTraceTracker(
      [](const native::TraceEntry& entry) { counts[entry.action_] += 1; });
}
int count_of(int action) { return counts[action]; }
bool is_native() { return native::name() == "native"; }
bool is_enabled() { return native::isEnabled(); }
void* base_of(void* pointer, size_t* size) {
  try {
    return native::getBaseAllocation(pointer, size);
  } catch (const std::exception&) {
    return nullptr;
  }
}
size_t largest_block() {
  size_t largest = 1;
  native::cacheInfo(0, &largest);
  return largest;
}
size_t mapped_bytes(void* stream, bool small) {
  size_t total = 0;
  for (const auto& one : native::getExpandableSegmentSizes(0)) {
    if (one.stream == stream && one.is_small_pool == small) total += one.total_size;
  }
  return total;
}
void* clone_of(void* data, size_t size) {
  held.push_back(native::get()->clone(data, size));
  return held.back().get();
}
bool is_plain(size_t size) {
  auto pointer = native::get()->allocate(size);
  return native::get()->is_simple_data_ptr(pointer) &&
      pointer.get_deleter() == native::get()->raw_deleter();
}
void drop_clones() { held.clear(); }
bool refuses_a_foreign_pointer() {
  try {
    native::raw_delete(reinterpret_cast<void*>(0x1000));
    return false;
  } catch (const c10::Error& error) {
    return std::string(error.what()).find("invalid device pointer") != std::string::npos;
  }
}
bool frees_nothing() {
  native::raw_delete(nullptr);
  return native::raw_alloc(0) == nullptr && native::get()->allocate(0).get() == nullptr;
}
}
"""

# The order of the actions in PyTorch's header.
ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free")


def cuda_includes():
    """The folders that have headers of the CUDA runtime; none of them need be complete."""
    site = os.path.dirname(os.path.dirname(torch.__file__))
    folders = [os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")]
    folders += glob.glob(os.path.join(site, "nvidia", "*", "include"))
    folders.append(os.path.join(site, "triton", "backends", "nvidia", "include"))
    return [
        folder for folder in folders if os.path.exists(os.path.join(folder, "cuda_runtime_api.h"))
    ]


class CppCase(AllocatorCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        compiler = shutil.which("g++") or shutil.which("c++")
        headers = cuda_includes()
        if compiler is None or not headers:
            raise unittest.SkipTest("no C++ compiler, or no headers of the CUDA runtime")
        cls.folder = tempfile.TemporaryDirectory()
        source = os.path.join(cls.folder.name, "calls.cpp")
        path = os.path.join(cls.folder.name, "libcalls.so")
        with open(source, "w") as file:
            file.write(SOURCE)
        home = os.path.dirname(torch.__file__)
        lib = os.path.join(home, "lib")
        built = subprocess.run(
            [compiler, "-std=c++17", "-shared", "-fPIC", source, "-o", path]
            + [f"-I{folder}" for folder in (home + "/include", *headers)]
            + [f"-L{lib}", f"-Wl,-rpath,{lib}", "-lc10_cuda", "-lc10"],
            capture_output=True,
            text=True,
        )
        if built.returncode != 0:
            cls.folder.cleanup()
            if "No such file or directory" in built.stderr:
                raise unittest.SkipTest("a header of the CUDA runtime is missing")
            raise AssertionError(built.stderr)
        cls.calls = ctypes.CDLL(path)
        for name in ("base_of", "clone_of"):
            getattr(cls.calls, name).restype = ctypes.c_void_p
        for name in ("largest_block", "mapped_bytes"):
            getattr(cls.calls, name).restype = ctypes.c_size_t
        for name in (
            "is_native",
            "is_enabled",
            "is_plain",
            "refuses_a_foreign_pointer",
            "frees_nothing",
        ):
            getattr(cls.calls, name).restype = ctypes.c_bool
        cls.calls.base_of.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]
        cls.calls.clone_of.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        cls.calls.mapped_bytes.argtypes = [ctypes.c_void_p, ctypes.c_bool]
        cls.calls.is_plain.argtypes = [ctypes.c_size_t]
        # A tracker cannot be taken away again, so there is one for the whole class.
        cls.calls.attach_tracker()

    @classmethod
    def tearDownClass(cls):
        # The library stays loaded: the tracker lies in it.
        cls.folder.cleanup()
        super().tearDownClass()

    def counts(self):
        return {action: self.calls.count_of(index) for index, action in enumerate(ACTIONS)}

    def test_it_goes_by_the_name_of_the_native_one(self):
        self.assertTrue(self.calls.is_native())
        self.assertTrue(self.calls.is_enabled())
        try:
            torch.cuda.caching_allocator_enable(False)
            self.assertFalse(self.calls.is_enabled())
        finally:
            torch.cuda.caching_allocator_enable(True)

    def test_a_tracker_hears_of_every_event(self):
        before = self.counts()
        tensor = byte_tensor(30 * MIB)
        del tensor
        torch.cuda.empty_cache()
        heard = {action: count - before[action] for action, count in self.counts().items()}
        self.assertEqual(heard, dict.fromkeys(ACTIONS, 1))

    def test_a_tracker_hears_what_the_history_leaves_out(self):
        torch.cuda.memory._record_memory_history(stacks="python", skip_actions=["alloc"])
        before = self.counts()["alloc"]
        keep = byte_tensor(512)
        self.assertEqual(self.counts()["alloc"] - before, 1)
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        self.assertNotIn("alloc", {entry["action"] for entry in trace})
        del keep

    def test_the_segment_below_a_pointer(self):
        with torch.cuda.stream(torch.cuda.Stream()):
            first, second = byte_tensor(4 * MIB), byte_tensor(3 * MIB)
        size = ctypes.c_size_t(0)
        self.assertEqual(self.calls.base_of(second.data_ptr(), size), first.data_ptr())
        self.assertEqual(size.value, 20 * MIB)

    def test_an_expandable_segment_has_no_such_base(self):
        self.configure("expandable_segments:True")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            tensor = byte_tensor(30 * MIB)
        self.assertIsNone(self.calls.base_of(tensor.data_ptr(), ctypes.c_size_t(0)))
        self.assertEqual(self.calls.mapped_bytes(stream.cuda_stream, False), 40 * MIB)
        self.assertEqual(self.calls.mapped_bytes(stream.cuda_stream, True), 0)

    def test_the_largest_free_block(self):
        tensor = byte_tensor(64 * MIB)
        del tensor
        keep = byte_tensor(10 * MIB)
        self.assertEqual(self.calls.largest_block(), 54 * MIB)
        del keep

    def test_a_clone_holds_the_same(self):
        before = torch.cuda.memory_allocated()
        tensor = filled(MIB, 17)
        torch.cuda.synchronize()
        pointer = self.calls.clone_of(tensor.data_ptr(), MIB)
        self.assertNotEqual(pointer, tensor.data_ptr())
        storage = torch._C._construct_storage_from_data_pointer(pointer, tensor.device, MIB)
        copy = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)
        torch.cuda.synchronize()
        self.assertTrue(holds(copy, 17))
        del copy, storage, tensor
        self.assertEqual(torch.cuda.memory_allocated() - before, MIB)
        self.calls.drop_clones()
        self.assertEqual(torch.cuda.memory_allocated(), before)

    def test_pointers_are_plain_ones(self):
        self.assertTrue(self.calls.is_plain(1000))
        self.assertTrue(self.calls.frees_nothing())

    def test_a_foreign_pointer_is_refused(self):
        self.assertTrue(self.calls.refuses_a_foreign_pointer())


if __name__ == "__main__":
    unittest.main()
