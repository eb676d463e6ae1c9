"""torch.compile with graphs: recorded graphs share a pool, and go back and forth between
checkpoints.
"""

import copy
import importlib.util
import shutil
import unittest

import torch

from allocator_case import AllocatorCase, private_segments


def small_network():
    return torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64), torch.nn.Tanh()
    ).cuda()


class CompileCase(AllocatorCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if importlib.util.find_spec("triton") is None:
            raise unittest.SkipTest("torch.compile needs triton")
        if shutil.which("gcc") is None and shutil.which("cc") is None:
            raise unittest.SkipTest("torch.compile needs a C compiler")

    def setUp(self):
        super().setUp()
        self.forget_everything()

    def tearDown(self):
        self.forget_everything()
        super().tearDown()

    @staticmethod
    def forget_everything():
        from torch._inductor import cudagraph_trees

        torch._dynamo.reset()
        cudagraph_trees.reset_cudagraph_trees()

    def assert_graphs_were_recorded(self, at_least):
        from torch._inductor import cudagraph_trees

        manager = cudagraph_trees.get_manager(0, create_if_none_exists=False)
        self.assertIsNotNone(manager, "no graph was recorded at all")
        self.assertGreaterEqual(manager.new_graph_id().id, at_least)
        self.assertTrue(private_segments())

    def test_inference(self):
        torch.manual_seed(0)
        network = small_network().eval()
        compiled = torch.compile(network, mode="reduce-overhead")
        with torch.no_grad():
            for _ in range(6):
                data = torch.randn(32, 64, device="cuda")
                torch.testing.assert_close(compiled(data), network(data), rtol=1e-3, atol=1e-3)
        self.assert_graphs_were_recorded(1)

    def test_training(self):
        torch.manual_seed(0)
        network = small_network()
        twin = copy.deepcopy(network)
        compiled = torch.compile(network, mode="reduce-overhead")
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (network, twin)]
        for _ in range(8):
            data = torch.randn(32, 64, device="cuda")
            torch.compiler.cudagraph_mark_step_begin()
            for model, optimizer in zip((compiled, twin), optimizers):
                optimizer.zero_grad(set_to_none=True)
                model(data).square().mean().backward()
                optimizer.step()
        for ours, theirs in zip(network.parameters(), twin.parameters()):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
        self.assert_graphs_were_recorded(2)

    def test_branches(self):
        # After the first function, sometimes one follows and sometimes the other: each way is
        # recorded from the state of the pool that the first one left.
        first = torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")
        left = torch.compile(lambda x: (x + 1).sin(), mode="reduce-overhead")
        right = torch.compile(lambda x: torch.cat([x, x * 2]).cos(), mode="reduce-overhead")
        rounds = [left, left, right, right, left, right, left, left, right]
        with torch.no_grad():
            for branch in rounds:
                torch.compiler.cudagraph_mark_step_begin()
                data = torch.randn(64, 64, device="cuda") / 8
                stem = first(data)
                result = branch(stem).clone()
                stem_expected = (data @ data).relu()
                expected = (
                    (stem_expected + 1).sin()
                    if branch is left
                    else torch.cat([stem_expected, stem_expected * 2]).cos()
                )
                torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)
                del stem, result
        self.assert_graphs_were_recorded(3)

    def test_outputs_that_live_on(self):
        step = torch.compile(lambda x: x * 2 + 1, mode="reduce-overhead")
        with torch.no_grad():
            value = torch.ones(1000, device="cuda")
            expected = 1.0
            for _ in range(8):
                torch.compiler.cudagraph_mark_step_begin()
                value = step(value).clone()
                expected = expected * 2 + 1
                self.assertEqual(value[0].item(), expected)
        before = torch.cuda.memory_allocated()
        del value
        self.assertLess(torch.cuda.memory_allocated(), before)

    def test_the_history_names_the_compiled_regions(self):
        network = small_network().eval()

        def broken_in_two(x):
            x = network[0](x)
            if x.sum() > 0:
                x = x + 1
            else:
                x = x - 1
            return network[2](x)

        compiled = torch.compile(broken_in_two)
        data = torch.randn(4, 64, device="cuda")
        try:
            torch.cuda.memory._record_memory_history(
                context="all", stacks="python", compile_context=True
            )
            with torch.no_grad():
                compiled(data)
            entries = torch.cuda.memory._snapshot()["device_traces"][0]
        finally:
            torch.cuda.memory._record_memory_history(None)
        regions = {entry["compile_context"] for entry in entries} - {"N/A"}
        self.assertTrue(regions)
        self.assertTrue(
            all(region.startswith("Torch-Compiled Region") for region in regions), regions
        )

    def test_everything_goes_when_it_is_reset(self):
        step = torch.compile(lambda x: x.exp() + 1, mode="reduce-overhead")
        with torch.no_grad():
            for _ in range(4):
                result = step(torch.ones(4096, device="cuda"))
        self.assertEqual(result.numel(), 4096)
        self.assertTrue(private_segments())
        del result, step
        self.forget_everything()
        self.start_clean()
        self.assertEqual(private_segments(), [])


class ExpandableCompileCase(CompileCase):
    settings = ("expandable_segments:True",)


if __name__ == "__main__":
    unittest.main()
