"""Memory at an address, and what a program says about memory that is there."""

import unittest

import torch

from allocator_case import (
    KIB,
    MIB,
    TORCH_VERSION,
    AllocatorCase,
    Change,
    block_at,
    byte_tensor,
    configure,
)

HAS_ADDRESSES = unittest.skipUnless(
    hasattr(torch.UntypedStorage, "_resize_with_addr_"), "this torch has no _resize_with_addr_"
)
HAS_REMARKS = unittest.skipUnless(
    hasattr(torch.cuda.memory, "_annotate_tensor"), "this torch has no _annotate_tensor"
)


def storage_at(size_bytes, address):
    """A storage of so many bytes at an address."""
    storage = torch.UntypedStorage(0, device="cuda")
    storage._resize_with_addr_(size_bytes, address)
    return storage


def trace():
    return torch.cuda.memory._snapshot()["device_traces"][0]


@HAS_ADDRESSES
class AddressCase(AllocatorCase):
    def test_what_was_freed_is_had_again_where_it_was(self):
        tensors = [byte_tensor(3 * MIB) for _ in range(4)]
        addresses = [tensor.data_ptr() for tensor in tensors]
        tensors.clear()
        reserved = torch.cuda.memory_reserved()
        change = Change()
        storages = [storage_at(3 * MIB, address) for address in reversed(addresses)]
        self.assertEqual([storage.data_ptr() for storage in storages], addresses[::-1])
        self.assertEqual(torch.cuda.memory_reserved(), reserved)
        self.assertEqual(change["allocation.all.current"], 4)
        # All but the lowest had free memory before them.
        self.assertEqual(change["allocation.all.allocated"], 7)
        self.assertEqual(change["allocation.all.freed"], 3)

    def test_it_holds_what_is_written_to_it(self):
        address = byte_tensor(64 * KIB).data_ptr() + 512
        storage = storage_at(4 * KIB, address)
        tensor = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)
        tensor.fill_(7)
        self.assertEqual((tensor.data_ptr(), tensor.numel()), (address, 4 * KIB))
        self.assertTrue(bool((tensor.cpu() == 7).all()))
        self.assertEqual(block_at(address)["state"], "active_allocated")
        del tensor, storage
        self.assertEqual(byte_tensor(64 * KIB).data_ptr(), address - 512)

    def test_an_address_that_is_not_free_is_refused(self):
        tensor = byte_tensor(3 * MIB)
        change = Change()
        for address in (tensor.data_ptr(), tensor.data_ptr() + 512, 1 << 20):
            with self.assertRaisesRegex(RuntimeError, "exact address 0x"):
                storage_at(2 * MIB, address)
        with torch.cuda.stream(torch.cuda.Stream()):
            with self.assertRaisesRegex(RuntimeError, "exact address"):
                storage_at(2 * MIB, tensor.data_ptr() + 4 * MIB)
        with self.assertRaisesRegex(RuntimeError, "512"):
            storage_at(2 * MIB, tensor.data_ptr() + 4 * MIB + 1)
        self.assertEqual(change["allocation.all.allocated"], 0)

    def test_it_is_had_in_an_expandable_segment(self):
        configure("expandable_segments:True")
        address = byte_tensor(30 * MIB).data_ptr() + 2 * MIB
        self.assertEqual(storage_at(5 * MIB, address).data_ptr(), address)

    def test_it_is_had_of_the_pool_in_use(self):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            address = byte_tensor(3 * MIB).data_ptr()
        with self.assertRaisesRegex(RuntimeError, "exact address"):
            storage_at(3 * MIB, address)
        with torch.cuda.use_mem_pool(pool):
            storage = storage_at(3 * MIB, address)
        self.assertEqual(storage.data_ptr(), address)

    def test_the_history_says_that_an_address_was_named(self):
        address = byte_tensor(20 * MIB).data_ptr()
        torch.cuda.memory._record_memory_history(stacks="python")
        try:
            storage = storage_at(2 * MIB, address + 5 * MIB)
            entries = trace()
        finally:
            torch.cuda.memory._record_memory_history(None)
        told = [(e["action"], e["addr"] - address, e["size"]) for e in entries]
        self.assertEqual(
            told,
            [
                ("alloc", 0, 5 * MIB),
                ("alloc", 5 * MIB, 2 * MIB),
                ("free_requested", 0, 5 * MIB),
                ("free_completed", 0, 5 * MIB),
            ],
        )
        key = "internal_metadata" if TORCH_VERSION >= (2, 15) else "user_metadata"
        self.assertEqual({entry[key] for entry in entries}, {"mallocWithAddress"})
        del storage

    def test_what_the_program_says_is_said_too(self):
        address = byte_tensor(20 * MIB).data_ptr()
        torch.cuda.memory._record_memory_history(stacks="python")
        torch._C._cuda_setMemoryMetadata("step 7")
        try:
            storage = storage_at(2 * MIB, address)
            torch._C._cuda_setMemoryMetadata("")
            del storage
            entries = trace()
        finally:
            torch._C._cuda_setMemoryMetadata("")
            torch.cuda.memory._record_memory_history(None)
        if TORCH_VERSION >= (2, 15):
            self.assertEqual(entries[0]["user_metadata"], "step 7")
            self.assertEqual(entries[0]["internal_metadata"], "mallocWithAddress")
            self.assertNotIn("internal_metadata", entries[1])
        else:
            self.assertEqual(entries[0]["user_metadata"], "step 7\nmallocWithAddress")
            self.assertEqual(entries[1]["user_metadata"], "")


@HAS_REMARKS
class RemarkCase(AllocatorCase):
    def test_a_remark_is_an_entry_of_its_own(self):
        tensor = byte_tensor(1000)
        torch.cuda.memory._record_memory_history(stacks="python")
        try:
            torch.cuda.memory._annotate_tensor(tensor, "the weights")
            torch.cuda.memory._annotate_tensor(tensor[10:], "a part of them")
            entries = trace()
        finally:
            torch.cuda.memory._record_memory_history(None)
        said = [(e["action"], e["addr"], e["size"], e["user_metadata"]) for e in entries]
        address = tensor.data_ptr()
        self.assertEqual(
            said,
            [
                ("annotate", address, 1000, "the weights"),
                ("annotate", address, 1000, "a part of them"),
            ],
        )
        self.assertIn(
            "test_a_remark_is_an_entry_of_its_own", {f["name"] for f in entries[0]["frames"]}
        )

    def test_without_a_history_a_remark_is_no_mistake(self):
        torch.cuda.memory._annotate_tensor(byte_tensor(1000), "nobody listens")

    def test_what_is_not_live_cannot_be_remarked_on(self):
        address = byte_tensor(1000).data_ptr()
        with self.assertRaisesRegex(RuntimeError, "no live allocation.* 0x"):
            torch._C._cuda_annotateMemory(address, "too late")

    def test_remarks_can_be_skipped(self):
        tensor = byte_tensor(1000)
        torch.cuda.memory._record_memory_history(stacks="python", skip_actions=["annotate"])
        try:
            torch.cuda.memory._annotate_tensor(tensor, "the weights")
            self.assertEqual(trace(), [])
        finally:
            torch.cuda.memory._record_memory_history(None)


if __name__ == "__main__":
    unittest.main()
