"""What is settled when a process starts: each of these runs in a child of its own.

The children inherit the environment, so they run on the allocator that the suite runs on.
"""

import unittest

from allocator_case import AllocatorCase, output_of, start_child

# Whether an allocator other than PyTorch's own is mapped into this process.
MAPPED = """
def mapped():
    return any("liblarder" in line or "larder/_native" in line for line in open("/proc/self/maps"))
"""


class ProcessCase(AllocatorCase):
    def test_before_cuda_is_used_a_snapshot_is_empty(self):
        child = start_child(
            "import torch; taken = torch.cuda.memory._snapshot(); "
            "print(len(taken['segments']), len(taken['device_traces']), "
            "torch.cuda.is_initialized())"
        )
        self.assertEqual(output_of(child), "0 0 False")

    def test_before_cuda_is_used_there_is_nothing_to_tell(self):
        child = start_child(
            """
import torch
assert not torch.cuda.is_initialized()
assert torch.cuda.memory_stats() == {}, torch.cuda.memory_stats()
assert torch.cuda.memory_allocated() == 0
torch.cuda.empty_cache()
assert not torch.cuda.is_initialized()
torch.ones(3, device="cuda")
print(torch.cuda.get_allocator_backend(), torch.cuda.memory_allocated())
""",
            PYTORCH_CUDA_ALLOC_CONF=None,
            PYTORCH_ALLOC_CONF=None,
        )
        self.assertEqual(output_of(child), "native 0")

    def test_a_child_runs_on_the_allocator_of_its_parent(self):
        here = {}
        exec(MAPPED, here)
        child = start_child(MAPPED + "import torch; torch.ones(1, device='cuda'); print(mapped())")
        self.assertEqual(output_of(child), str(here["mapped"]()))

    def test_the_environment_is_read(self):
        script = """
import torch
tensor = torch.empty(84 << 20, dtype=torch.uint8, device="cuda")
print(torch.cuda.memory_allocated() >> 20, torch.cuda.memory_snapshot()[0]["is_expandable"],
      torch.cuda.memory_stats()["max_split_size"] >> 20)
"""
        both = "roundup_power2_divisions:4,max_split_size_mb:200"
        new_name = start_child(script, PYTORCH_ALLOC_CONF=both, PYTORCH_CUDA_ALLOC_CONF=None)
        old_name = start_child(
            script,
            PYTORCH_ALLOC_CONF=None,
            PYTORCH_CUDA_ALLOC_CONF=both + ",expandable_segments:True",
        )
        self.assertEqual(output_of(new_name), "96 False 200")
        self.assertEqual(output_of(old_name), "96 True 200")

    def test_caching_can_be_switched_off_for_the_whole_process(self):
        child = start_child(
            """
import torch
tensor = torch.full((1000,), 2.0, device="cuda")
print(tensor.cpu().sum().item(), torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
""",
            PYTORCH_NO_CUDA_MEMORY_CACHING="1",
        )
        self.assertEqual(output_of(child), "2000.0 0 0")

    def test_the_asynchronous_backend_can_still_be_chosen(self):
        # The choice is made while PyTorch is loaded, from this one key; the others may be wrong.
        child = start_child(
            """
import os
os.environ["PYTORCH_ALLOC_CONF"] = (
    "max_split_size_mb:20,backend:cudaMallocAsync,release_lock_on_cudamalloc:none")
import torch
torch.cuda.init()
print(torch.cuda.get_allocator_backend())
""",
            PYTORCH_CUDA_ALLOC_CONF=None,
            PYTORCH_ALLOC_CONF=None,
        )
        self.assertEqual(output_of(child).splitlines()[-1], "cudaMallocAsync")

    def test_callbacks_hear_of_each_allocation_and_each_free(self):
        child = start_child(
            """
import torch
import torch.cuda._gpu_trace as gpu_trace
torch._C._activate_gpu_trace()
made, freed = [], []
gpu_trace.register_callback_for_memory_allocation(made.append)
gpu_trace.register_callback_for_memory_deallocation(freed.append)
tensor = torch.empty(10, 4, device="cuda")
address = tensor.data_ptr()
assert made == [address], (made, address)
assert freed == [], freed
del tensor
assert freed == [address], freed
print("heard")
"""
        )
        self.assertEqual(output_of(child), "heard")

    def test_pinned_memory_with_a_background_thread(self):
        child = start_child(
            """
import torch
torch._C._accelerator_setAllocatorSettings("pinned_use_background_threads:True")
tensor = torch.ones(1024 * 1024, pin_memory=True)
on_device = tensor.cuda(non_blocking=True)
del tensor
again = torch.ones(1024 * 1024, pin_memory=True)
print(again.is_pinned(), on_device.cpu().sum().item())
"""
        )
        self.assertEqual(output_of(child), "True 1048576.0")

    def test_tensors_alive_at_the_end_do_no_harm(self):
        child = start_child(
            """
import torch
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    inside = torch.ones(1000, device="cuda")
graph = torch.cuda.CUDAGraph()
outside = torch.ones(1000, device="cuda")
with torch.cuda.graph(graph):
    captured = outside + inside
graph.replay()
torch.cuda.memory._record_memory_history()
print(captured.cpu().sum().item())
"""
        )
        self.assertEqual(output_of(child), "2000.0")

    def test_a_forked_child_may_use_the_cpu_alone(self):
        child = start_child(
            """
import os, torch
torch.ones(1, device="cuda")
pid = os.fork()
if pid == 0:
    try:
        torch.ones(1, device="cuda")
    except RuntimeError as error:
        os._exit(7 if "fork" in str(error) else 8)
    os._exit(9)
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status))
"""
        )
        self.assertEqual(output_of(child), "7")


if __name__ == "__main__":
    unittest.main()
