"""CUDA graphs: where the memory of a capture comes from, who may share it, and when it goes."""

import copy
import gc
import unittest

import torch

from allocator_case import (
    LARGE_SEGMENT_BYTES,
    MIB,
    SMALL_SEGMENT_BYTES,
    AllocatorCase,
    BusyStream,
    Change,
    alone_on_the_card,
    byte_tensor,
    live_blocks,
    private_segments,
    segment_at,
    segments_of,
)


def with_temporaries(tensor, value):
    left = tensor.clone() + value
    right = tensor.clone() + value
    return left + right


class GraphCase(AllocatorCase):
    def test_a_graph_has_a_pool_of_its_own(self):
        source = torch.ones(1000, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = source + 1
        pool_id = graph.pool()
        self.assertEqual(segment_at(result.data_ptr())["segment_pool_id"], pool_id)
        self.assertGreater(pool_id[0], 0)
        self.assertEqual(pool_id[1], 0)
        for value in range(5):
            source.fill_(value)
            graph.replay()
            self.assertEqual(result.cpu().sum().item(), 1000.0 * (value + 1))

    def test_memory_of_a_graph_stays_as_long_as_the_graph(self):
        source = torch.ones(MIB, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = with_temporaries(source, 1)
        pool_id = graph.pool()
        held = sum(s["total_size"] for s in segments_of(pool_id))
        torch.cuda.empty_cache()
        self.assertEqual(sum(s["total_size"] for s in segments_of(pool_id)), held)
        self.assertEqual(live_blocks(pool_id), 1)
        graph.replay()
        self.assertEqual(result.cpu().sum().item(), 4.0 * MIB)
        del graph
        torch.cuda.empty_cache()
        self.assertEqual(live_blocks(pool_id), 1, "the result is still there")
        self.assertEqual(result.cpu().sum().item(), 4.0 * MIB)
        del result
        torch.cuda.empty_cache()
        self.assertEqual(segments_of(pool_id), [])

    # elements, segments and bytes while the graph lives, bytes after it, which pool
    SIZE_CLASSES = (
        (512 // 4, 1, SMALL_SEGMENT_BYTES, SMALL_SEGMENT_BYTES, "small_pool"),
        (MIB // 4, 2, 2 * SMALL_SEGMENT_BYTES, SMALL_SEGMENT_BYTES, "small_pool"),
        ((MIB + 512) // 4, 1, LARGE_SEGMENT_BYTES, LARGE_SEGMENT_BYTES, "large_pool"),
        ((10 * MIB - 512) // 4, 2, 2 * LARGE_SEGMENT_BYTES, LARGE_SEGMENT_BYTES, "large_pool"),
        ((10 * MIB + 512) // 4, 3, 3 * 12 * MIB, 12 * MIB, "large_pool"),
    )

    def expected(self, row, graph_lives):
        """Segments, reserved bytes, active blocks and active bytes that the capture adds."""
        elements, segments, bytes_with, bytes_after, pool = self.SIZE_CLASSES[row]
        # The generator's seed and offset lie in two blocks of the small pool while the graph lives.
        generator_blocks = 2 if graph_lives and pool == "small_pool" else 0
        reserved = bytes_with if graph_lives else bytes_after
        if not graph_lives:
            segments = 1
        if self.expandable:
            # Pages are mapped one by one, and a page goes only when all of it is free.
            segments = 0
            if row == 3:
                reserved = 2 * LARGE_SEGMENT_BYTES
            elif row == 4:
                reserved = 2 * LARGE_SEGMENT_BYTES if graph_lives else LARGE_SEGMENT_BYTES
        return {
            "segment": segments,
            "reserved_bytes": reserved,
            "active": 1 + generator_blocks,
            "active_bytes": 4 * elements + 512 * generator_blocks,
        }

    def test_what_a_capture_adds_for_each_size(self):
        stream = torch.cuda.Stream()
        for row, (elements, *_, pool) in enumerate(self.SIZE_CLASSES):
            with self.subTest(elements=elements):
                graph = torch.cuda.CUDAGraph()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    # On the stream of the capture, so that the generator's blocks fit beside it.
                    source = torch.ones(elements, device="cuda")
                    change = Change()
                    graph.capture_begin()
                    result = source.clone()
                    for _ in range(5):
                        result = result.clone() + 1
                    graph.capture_end()
                torch.cuda.current_stream().wait_stream(stream)

                def assert_added(graph_lives):
                    for family, amount in self.expected(row, graph_lives).items():
                        key = f"{family}.{pool}.current"
                        self.assertEqual(change[key], amount, f"{key}, graph lives: {graph_lives}")

                assert_added(True)
                graph.replay()
                self.assertEqual(result.cpu().sum().item(), 6 * elements)
                torch.cuda.empty_cache()
                assert_added(True)
                graph.replay()
                self.assertEqual(result.cpu().sum().item(), 6 * elements)
                del graph
                gc.collect()
                torch.cuda.empty_cache()
                assert_added(False)
                self.assertEqual(result.cpu().sum().item(), 6 * elements)
                del source, result
                torch.cuda.synchronize()
                torch.cuda.empty_cache()

    def capture_chain(self, source, stream, sharing):
        """Two graphs, the second of which goes on from the first."""
        first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        handle = torch.cuda.graph_pool_handle() if sharing == "handle" else None
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            first.capture_begin(pool=handle)
            result = source.clone()
            for _ in range(5):
                result = with_temporaries(result, 1)
            first.capture_end()
            second.capture_begin(pool=first.pool() if sharing == "pool" else handle)
            for _ in range(5):
                result = with_temporaries(result, 1)
            second.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        return first, second, result

    def test_graphs_that_follow_one_another_may_share(self):
        stream = torch.cuda.Stream()
        reserved = {}
        for sharing in ("none", "pool", "handle"):
            source = torch.ones(1000, device="cuda")
            first, second, result = self.capture_chain(source, stream, sharing)
            eager = with_temporaries(source, 3)
            first.replay()
            eager = with_temporaries(eager, 3)
            second.replay()
            self.assertEqual(result.cpu().sum().item(), 1000 * 3070)
            self.assertEqual(eager.cpu().sum().item(), 1000 * 22)
            reserved[sharing] = torch.cuda.memory_reserved()
            del source, first, second, result, eager
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        self.assertEqual(reserved["none"] - reserved["pool"], SMALL_SEGMENT_BYTES)
        self.assertEqual(reserved["none"] - reserved["handle"], SMALL_SEGMENT_BYTES)

    def test_graphs_that_share_use_what_died_between_them(self):
        stream = torch.cuda.Stream()
        for sharing in (False, True):
            with self.subTest(sharing=sharing):
                source = torch.ones(1000, device="cuda")
                graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    graphs[0].capture_begin()
                    base = source.clone()
                    dies, stays = base + 1, base + 2
                    graphs[0].capture_end()
                    pool = graphs[0].pool() if sharing else None
                    graphs[1].capture_begin(pool=pool)
                    middle = dies + 3
                    dies_address = dies.data_ptr()
                    del dies
                    graphs[1].capture_end()
                    graphs[2].capture_begin(pool=pool)
                    last = stays + 4
                    graphs[2].capture_end()
                torch.cuda.current_stream().wait_stream(stream)
                self.assertEqual(last.data_ptr() == dies_address, sharing)
                for graph in graphs:
                    graph.replay()
                self.assertEqual(
                    (middle.cpu().sum().item(), last.cpu().sum().item()), (5000.0, 7000.0)
                )
                for index in (0, 2, 1):
                    graphs[index].replay()
                # Out of order, the shared block holds what the last graph wrote.
                self.assertEqual(middle.cpu().sum().item(), 10000.0 if sharing else 5000.0)
                del source, base, stays, middle, last, graphs, graph

    def test_a_graph_may_be_captured_again(self):
        source = torch.ones(1000, device="cuda")
        graph = torch.cuda.CUDAGraph()
        for value in (1, 2, 3):
            with torch.cuda.graph(graph):
                result = source + value
            graph.replay()
            self.assertEqual(result.cpu().sum().item(), 1000.0 * (1 + value))
            graph.reset()
            del result

    def test_pending_blocks_are_left_alone_while_a_graph_is_captured(self):
        waiting = torch.zeros(3, device="cuda")
        source = torch.zeros(3, device="cuda")
        capture_stream, joined = torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()
        busy = BusyStream(cycles=50_000_000)
        with torch.cuda.stream(busy.stream):
            waiting.record_stream(busy.stream)
            waiting.fill_(1.0)
        del waiting
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(capture_stream):
            graph.capture_begin()
            # To ask an event whether it is done would spoil the capture.
            inside = source.clone()
            joined.wait_stream(capture_stream)
            with torch.cuda.stream(joined):
                inside.fill_(1.0)
                inside.record_stream(joined)
                del inside
            capture_stream.wait_stream(joined)
            graph.capture_end()
        torch.cuda.synchronize()
        keep = torch.zeros(3, device="cuda")
        torch.cuda.empty_cache()
        self.assert_snapshot_agrees("after the capture")
        graph.replay()
        torch.cuda.synchronize()
        self.assertEqual(live_blocks(graph.pool()), 0)
        del keep

    def test_memory_freed_in_a_capture_is_used_again_in_it(self):
        stream = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            first = byte_tensor(30 * MIB)
            first.fill_(1)
            address = first.data_ptr()
            del first
            second = byte_tensor(30 * MIB)
            second.fill_(2)
            addresses = (address, second.data_ptr())
        self.assertEqual(*addresses)

    def test_running_out_in_a_capture(self):
        with self.assertRaisesRegex(RuntimeError, "out of memory"):
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                torch.zeros(2**40, device="cuda")
        source = torch.ones(10, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = source + 1
        graph.replay()
        self.assertEqual(result.cpu().sum().item(), 20.0)

    def test_a_stream_that_joins_allocates_from_the_same_pool(self):
        left = torch.randn(10_240_000, device="cuda")
        right = torch.rand_like(left)
        there_before = {s["segment_pool_id"] for s in private_segments()}
        graph = torch.cuda.CUDAGraph()
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        first.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(first):
            graph.capture_begin()
            total = left + right
        with torch.cuda.stream(second):
            second.wait_stream(first)
            again = total + right
        first.wait_stream(second)
        with torch.cuda.stream(first):
            graph.capture_end()
        new = [s for s in private_segments() if s["segment_pool_id"] not in there_before]
        self.assertEqual([s["segment_pool_id"] for s in new], [graph.pool()] * 2)
        self.assertEqual(len({s["stream"] for s in new}), 2)
        graph.replay()
        torch.cuda.synchronize()
        self.assertTrue(torch.equal(again, left + right + right))

    def test_generators_cost_two_blocks_each(self):
        def in_use():
            stats = torch.cuda.memory_stats()
            return stats["active.all.current"], stats["active_bytes.all.current"]

        def capture(graph):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                graph.capture_begin()
                torch.rand(1, device="cuda")
                graph.capture_end()
            torch.cuda.current_stream().wait_stream(stream)
            graph.replay()

        for graph_count, generator_count in ((1, 1), (3, 2), (10, 20)):
            with self.subTest(graphs=graph_count, generators=generator_count):
                before = in_use()
                generator = torch.cuda.default_generators[0]
                states = [generator.graphsafe_get_state()]
                states += [generator.clone_state() for _ in range(generator_count - 1)]
                graphs = [torch.cuda.CUDAGraph() for _ in range(graph_count)]
                for graph in graphs:
                    for state in states:
                        graph.register_generator_state(state)
                    capture(graph)
                blocks, size_bytes = in_use()
                self.assertEqual(blocks - before[0], 2 * generator_count)
                self.assertEqual(size_bytes - before[1], 2 * 512 * generator_count)
                del graphs, graph, states
                gc.collect()
                torch.cuda.empty_cache()
                self.assertEqual(in_use(), before)

    @alone_on_the_card
    def test_capturing_over_and_over_does_not_pile_up(self):
        left = torch.rand(1024, 512, device="cuda")
        right = torch.rand(512, 64, device="cuda")
        torch.mm(left, right)

        def capture_one():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                torch.mm(left, right)
            graph.replay()

        capture_one()
        torch.cuda.synchronize()
        free_before, _ = torch.cuda.mem_get_info()
        for _ in range(50):
            capture_one()
        torch.cuda.synchronize()
        self.assertLess(free_before - torch.cuda.mem_get_info()[0], 100_000_000)

    def test_graphed_callables_share_a_pool(self):
        torch.manual_seed(5)
        models = [
            torch.nn.Sequential(
                torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128)
            ).cuda()
            for _ in range(3)
        ]
        pool = torch.cuda.graph_pool_handle()
        graphed = []
        for model in models:
            sample = torch.randn(64, 32, device="cuda")
            graphed.append(
                torch.cuda.make_graphed_callables(copy.deepcopy(model), (sample,), pool=pool)
            )
        self.assertTrue(segments_of(pool))
        for model, graphed_model in zip(models, graphed):
            data = torch.randn(64, 32, device="cuda")
            eager_out, graph_out = model(data), graphed_model(data)
            eager_out.norm().backward()
            graph_out.norm().backward()
            torch.testing.assert_close(graph_out, eager_out)
            for eager, replayed in zip(model.parameters(), graphed_model.parameters()):
                torch.testing.assert_close(replayed.grad, eager.grad)
                self.assertNotEqual(replayed.grad.data_ptr(), eager.grad.data_ptr())

    def test_a_whole_training_step(self):
        torch.manual_seed(2)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        ).cuda()
        twin = copy.deepcopy(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.05)
        batches = [torch.randn(32, 64, device="cuda") for _ in range(6)]
        static = batches[0].clone()

        def step(network, its_optimizer, batch):
            its_optimizer.zero_grad(set_to_none=True)
            loss = network(batch).square().mean()
            loss.backward()
            its_optimizer.step()
            return loss

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for batch in batches[:3]:
                step(model, optimizer, batch)
        torch.cuda.current_stream().wait_stream(side)
        for batch in batches[:3]:
            step(twin, twin_optimizer, batch)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step(model, optimizer, static)
        for batch in batches[3:]:
            static.copy_(batch)
            graph.replay()
            twin_loss = step(twin, twin_optimizer, batch)
            torch.testing.assert_close(loss, twin_loss)
        for ours, theirs in zip(model.parameters(), twin.parameters()):
            torch.testing.assert_close(ours, theirs)


class ReuseCase(AllocatorCase):
    """`graph_capture_record_stream_reuse`: what the graph itself proves to be free."""

    settings = ("graph_capture_record_stream_reuse:True",)

    def test_two_streams(self):
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            graph.capture_begin()
            sink = torch.empty(8, device="cuda")
            data = torch.empty(8, device="cuda")
            address = data.data_ptr()
            second.wait_stream(first)
            with torch.cuda.stream(second):
                buffer = torch.empty_like(data)
                torch.add(data, 2.0, out=buffer)
                data.record_stream(second)
            del data
            before_join = torch.empty(8, device="cuda")
            first.wait_stream(second)
            sink.fill_(1.0)
            after_join = torch.empty(8, device="cuda")
            graph.capture_end()
        torch.cuda.synchronize()
        self.assertNotEqual(before_join.data_ptr(), address)
        self.assertEqual(after_join.data_ptr(), address)

    def test_four_streams_must_all_have_joined(self):
        first, *others = (torch.cuda.Stream() for _ in range(4))
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            graph.capture_begin()
            data = torch.ones(8, device="cuda")
            address = data.data_ptr()
            sink, other_sink = torch.empty_like(data), torch.empty_like(data)
            buffers = []
            for addend, stream in enumerate(others):
                stream.wait_stream(first)
                with torch.cuda.stream(stream):
                    buffers.append(torch.empty_like(data))
                    torch.add(data, float(addend), out=buffers[-1])
                    data.record_stream(stream)
            del data
            # Half of the streams have joined here, the other half elsewhere.
            first.wait_stream(others[0])
            sink.fill_(1.0)
            others[1].wait_stream(others[2])
            with torch.cuda.stream(others[1]):
                other_sink.fill_(3.0)
                other_sink.record_stream(others[1])
            too_early = torch.empty(8, device="cuda")
            first.wait_stream(others[1])
            sink.add_(other_sink)
            in_time = torch.empty(8, device="cuda")
            graph.capture_end()
        torch.cuda.synchronize()
        self.assertNotEqual(too_early.data_ptr(), address)
        self.assertEqual(in_time.data_ptr(), address)

    def test_without_the_setting_it_waits_for_the_end(self):
        self.configure("graph_capture_record_stream_reuse:False")
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            graph.capture_begin()
            data = torch.empty(8, device="cuda")
            address = data.data_ptr()
            second.wait_stream(first)
            with torch.cuda.stream(second):
                data.fill_(1.0)
                data.record_stream(second)
            del data
            first.wait_stream(second)
            after_join = torch.empty(8, device="cuda")
            after_join.fill_(2.0)
            graph.capture_end()
        torch.cuda.synchronize()
        self.assertNotEqual(after_join.data_ptr(), address)


if __name__ == "__main__":
    unittest.main()
