//! What a program that ran out of memory is told to do about it: what would have helped it, and
//! nothing that would not.

use crate::bench_top::{BenchTop, MAIN, SIDE};
use larder_core::heap::Filter;
use larder_core::types::{GIB, MIB};
use larder_core::{MemPool, Policy};
use larder_sim::random::Random;

/// 1000 MiB were cached as one segment, of which 300 MiB are in use now: 700 MiB lie beside them.
fn leave_700_of_1000_mib(top: &BenchTop) {
    let whole = top.malloc(1000 * MIB);
    top.free(whole);
    top.malloc(300 * MIB);
}

#[test]
fn memory_in_pieces_is_called_so_and_joined_by_expandable_segments() {
    let asked_bytes = 1403 * MIB;
    BenchTop::under_each_policy(2 * GIB, "", |top| {
        leave_700_of_1000_mib(top);
        let report = top.oom(asked_bytes);
        assert!(report.unallocated_bytes() < asked_bytes, "the cache alone has too little");
        assert!(report.free_bytes < asked_bytes, "and so has the device");
        let text = report.to_string();
        let pieces = "There are enough bytes but in pieces, 1.02 GiB to be had of the device and \
                      700.00 MiB in the cache, there the largest 700.00 MiB: set \
                      expandable_segments:True, which joins free pieces.";
        assert!(text.ends_with(pieces), "{text}");
    });
    BenchTop::under_each_policy(2 * GIB, "expandable_segments:True", |top| {
        leave_700_of_1000_mib(top);
        top.malloc(asked_bytes);
    });
}

/// Tells, under each policy, of a request that fails with some settings.
fn tell_of(
    memory_bytes: u64,
    settings: &str,
    story: fn(&BenchTop),
    asked_bytes: u64,
) -> Vec<String> {
    let tell = |policy| {
        let top = BenchTop::new(memory_bytes, settings, policy);
        story(&top);
        top.oom(asked_bytes).to_string()
    };
    [Policy::larder(), Policy::torch_2_11()].map(tell).to_vec()
}

/// What is told under Larder's policy. Stock PyTorch does not have Larder's own settings, and under
/// its policy none is named.
fn tell_larders(texts: &[String]) -> String {
    let [larders, torchs] = texts else { panic!("one for each policy: {texts:?}") };
    assert!(!torchs.contains("page_size_mb") && !torchs.contains("LARDER_CONF"), "{torchs}");
    larders.clone()
}

/// Tells, under each policy, of a request that is served with some settings.
fn serve(memory_bytes: u64, settings: &str, story: fn(&BenchTop), asked_bytes: u64) {
    BenchTop::under_each_policy(memory_bytes, settings, |top| {
        story(top);
        top.malloc(asked_bytes);
    });
}

/// Words that were once said to anybody.
fn names_a_setting(text: &str) -> bool {
    let settings =
        ["expandable_segments", "page_size_mb", "on the stream that asks", "empty the cache"];
    settings.iter().any(|setting| text.contains(setting))
}

/// Fills the memory with blocks of one size, and frees every second of them.
fn free_every_second(top: &BenchTop, size_bytes: u64, count: usize) {
    let blocks: Vec<_> = (0..count).map(|_| top.malloc(size_bytes)).collect();
    for &block in blocks.iter().skip(1).step_by(2) {
        top.free(block);
    }
}

#[test]
fn what_came_free_too_late_for_the_search_is_not_called_pieces() {
    let story = |top: &BenchTop| {
        let whole = top.malloc(600_000_000);
        top.free(whole);
        top.malloc(20_000_000);
        let used = top.malloc(550_000_000);
        top.record(used, SIDE);
        top.device.issue(SIDE);
        top.free(used);
    };
    let asked_bytes = 540_000_000;
    let top = BenchTop::torch(GIB, "");
    story(&top);
    let text = top.oom(asked_bytes).to_string();
    assert!(
        text.contains("A free block of 554.93 MiB would hold it: it came free while"),
        "{text}"
    );
    assert!(text.ends_with("(policy larder does). Asking again succeeds."), "{text}");
    assert!(!text.contains("pieces") && !names_a_setting(&text), "{text}");
    top.malloc(asked_bytes);
    let top = BenchTop::larder(GIB, "");
    story(&top);
    top.malloc(asked_bytes);
}

#[test]
fn a_large_block_that_is_another_streams_is_said_to_be() {
    let story = |top: &BenchTop| {
        let whole = top.malloc_on(600 * MIB, SIDE);
        top.free(whole);
        top.malloc_on(20 * MIB, SIDE);
    };
    for text in tell_of(GIB, "", story, 540 * MIB) {
        assert!(text.contains("the largest 580.00 MiB, which another stream or"), "{text}");
        assert!(text.contains("set expandable_segments:True"), "{text}");
    }
    serve(GIB, "expandable_segments:True", story, 540 * MIB);
}

#[test]
fn no_setting_is_named_for_pieces_that_none_would_join() {
    let story = |top: &BenchTop| free_every_second(top, MIB, 90);
    let settings = ["", "expandable_segments:True", "expandable_segments:True,page_size_mb:2"];
    for settings in settings {
        for text in tell_of(100 * MIB, settings, story, 40 * MIB) {
            let obstacle = "The cache has enough bytes but in pieces, the largest 1.00 MiB, beside \
                            live blocks that keep them apart: free those first, or ask for less at \
                            once, as with smaller batches.";
            assert!(text.ends_with(obstacle), "{text}");
            assert!(!names_a_setting(&text), "{text}");
        }
    }
}

#[test]
fn finer_pages_are_named_where_pages_are_half_in_use() {
    let story = |top: &BenchTop| free_every_second(top, 10 * MIB, 80);
    let cure = "set page_size_mb:2 in LARDER_CONF, for in pages of 2.00 MiB there would be 400.00 \
                MiB of the cache to give back.";
    let text = tell_larders(&tell_of(GIB, "expandable_segments:True", story, 300 * MIB));
    assert!(text.ends_with(cure), "{text}");
    serve(GIB, "expandable_segments:True,page_size_mb:2", story, 300 * MIB);
}

#[test]
fn finer_pages_are_named_where_too_few_whole_ones_are_left() {
    let story = |top: &BenchTop| {
        top.malloc_on(5 * MIB, SIDE);
    };
    let pages = "It takes whole pages of 20.00 MiB, and there are too few: set page_size_mb:2";
    let text = tell_larders(&tell_of(50 * MIB, "expandable_segments:True", story, 25 * MIB));
    assert!(text.contains(pages), "{text}");
    serve(50 * MIB, "expandable_segments:True,page_size_mb:2", story, 25 * MIB);
}

#[test]
fn pieces_smaller_than_a_page_are_joined_by_finer_pages_alone() {
    // Of every segment of 20 MiB a quarter is in use.
    let story = |top: &BenchTop| {
        let blocks: Vec<_> = (0..40).map(|_| top.malloc(5 * MIB)).collect();
        for (_, &block) in blocks.iter().enumerate().filter(|(at, _)| at % 4 != 0) {
            top.free(block);
        }
    };
    let both =
        "expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF with page_size_mb:2 in LARDER_CONF";
    let text = tell_larders(&tell_of(220 * MIB, "", story, 100 * MIB));
    assert!(text.contains(both), "{text}");
    tell_of(220 * MIB, "expandable_segments:True", story, 100 * MIB);
    serve(220 * MIB, "expandable_segments:True,page_size_mb:2", story, 100 * MIB);
}

#[test]
fn what_depends_on_where_pages_begin_is_told_with_care() {
    // Five times 10 MiB in use, and 30 MiB behind them free: a page, perhaps.
    let story = |top: &BenchTop| {
        let rests = [(); 5].map(|()| {
            let whole = top.malloc(40 * MIB);
            top.free(whole);
            top.malloc(10 * MIB);
            top.malloc(30 * MIB)
        });
        top.free_all(&rests);
    };
    let texts = tell_of(220 * MIB, "", story, 90 * MIB);
    let care = "expandable_segments:True may help, which joins free pieces as far as they are \
                whole pages of 20.00 MiB";
    assert!(texts.iter().all(|text| text.contains(care)), "{texts:?}");
    let text = tell_larders(&texts);
    assert!(text.contains("; expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF with"), "{text}");
    serve(220 * MIB, "expandable_segments:True", story, 90 * MIB);
}

#[test]
fn a_private_pool_is_to_be_let_go_only_if_that_makes_room() {
    BenchTop::under_each_policy(100 * MIB, "", |top| {
        let pool = MemPool::new(&top.allocator).unwrap();
        let whole = pool.scope(|| top.malloc(60 * MIB)).unwrap();
        top.free(whole);
        let text = top.oom(80 * MIB).to_string();
        assert!(text.ends_with("free: let go of those that are done with."), "{text}");
        pool.scope(|| top.malloc(10 * MIB)).unwrap();
        let text = top.oom(80 * MIB).to_string();
        assert!(!text.contains("let go"), "10 MiB of it are in use: {text}");
        assert!(text.contains("and 50.00 MiB in private pools, there the largest"), "{text}");
        let text = top.oom(50 * MIB).to_string();
        let lend = "Private pools keep 50.00 MiB free: let requests from outside use them when \
                    memory runs out.";
        assert!(text.ends_with(lend), "{text}");
        pool.set_use_on_oom(true).unwrap();
        top.malloc(50 * MIB);
    });
}

#[test]
fn nobody_is_told_to_turn_on_what_is_on() {
    // Blocks of two streams, a little in the first page of each: the rest of those pages is bound.
    let story = |top: &BenchTop| {
        for stream in [MAIN, SIDE] {
            let whole = top.malloc_on(20 * MIB, stream);
            top.free(whole);
            top.malloc_on(2 * MIB, stream);
        }
    };
    let texts = tell_of(100 * MIB, "expandable_segments:True", story, 80 * MIB);
    for text in &texts {
        assert!(text.contains("There are enough bytes but in pieces, 60.00 MiB"), "{text}");
        assert!(!text.contains("expandable_segments:True"), "{text}");
    }
    assert!(tell_larders(&texts).contains("set page_size_mb:2"), "{texts:?}");
    serve(100 * MIB, "expandable_segments:True,page_size_mb:2", story, 80 * MIB);
}

#[test]
fn a_memory_fraction_that_stops_a_request_is_named() {
    BenchTop::under_each_policy(GIB, "", |top| {
        top.allocator.set_memory_fraction(0.25).unwrap();
        top.malloc(200 * MIB);
        let text = top.oom(100 * MIB).to_string();
        let fraction = "The memory fraction stops it: 200.00 MiB of the 256.00 MiB that it allows \
                        is reserved, while the device has 824.00 MiB free; raise the fraction.";
        assert!(text.ends_with(fraction), "{text}");
        top.allocator.set_memory_fraction(1.0).unwrap();
        top.malloc(100 * MIB);
    });
}

#[test]
fn both_ways_out_are_named_where_either_would_do() {
    BenchTop::under_each_policy(8 * GIB, "", |top| {
        top.allocator.set_memory_fraction(0.25).unwrap();
        leave_700_of_1000_mib(top);
        let text = top.oom(1403 * MIB).to_string();
        assert!(text.contains("in pieces, 1.02 GiB to be had of the device"), "{text}");
        assert!(text.contains("expandable_segments:True"), "{text}");
        assert!(
            text.contains("The memory fraction stops it: 1000.00 MiB of the 2.00 GiB"),
            "{text}"
        );
    });
}

#[test]
fn a_fraction_does_not_stop_what_other_processes_hold() {
    BenchTop::under_each_policy(GIB, "", |top| {
        top.allocator.set_memory_fraction(0.5).unwrap();
        top.device.tenant_take(1000 * MIB);
        let text = top.oom(100 * MIB).to_string();
        assert!(
            text.ends_with("Other processes hold 1000.00 MiB; stop them to make room."),
            "{text}"
        );
    });
}

#[test]
fn a_capture_that_keeps_the_cache_from_being_given_back_is_named() {
    BenchTop::under_each_policy(100 * MIB, "", |top| {
        let cached = top.malloc(60 * MIB);
        top.free(cached);
        let pool = MemPool::for_capture(&top.allocator).unwrap();
        let text = pool.scope_for(Filter::Capture(MAIN), || {
            top.device.begin_capture(MAIN).unwrap();
            let text = top.oom(80 * MIB).to_string();
            top.device.end_capture(MAIN).unwrap();
            text
        });
        let text = text.unwrap();
        assert!(
            text.contains("60.00 MiB free that cannot be given back while a capture"),
            "{text}"
        );
        assert!(!text.contains("expandable_segments"), "{text}");
    });
}

#[test]
fn what_a_rule_refuses_is_not_called_larger_than_the_fraction() {
    let settings = "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True";
    let top = BenchTop::torch(100 * MIB, settings);
    top.allocator.set_memory_fraction(1.0).unwrap();
    top.malloc(40 * MIB);
    let text = top.oom(20 * MIB).to_string();
    assert!(
        text.contains("be more than the 50.00 MiB that per_process_memory_fraction allows"),
        "{text}"
    );
    assert!(!text.contains("larger than"), "20 MiB are within half of 100 MiB: {text}");
}

#[test]
fn what_a_rule_refuses_with_no_fraction_is_more_than_the_device() {
    let top = BenchTop::torch(100 * MIB, "throw_on_cudamalloc_oom:True");
    let text = top.oom(120 * MIB).to_string();
    assert!(text.contains("be more than the 100.00 MiB of the device"), "{text}");
    assert!(!text.contains("fraction"), "{text}");
}

#[test]
fn a_segment_that_may_not_have_the_addresses_is_named() {
    let settings = "expandable_segments:True,expandable_segments_reserve:0.25";
    let top = BenchTop::new(400 * MIB, settings, Policy::torch_2_15());
    let text = top.oom(200 * MIB).to_string();
    assert!(
        text.contains("expandable_segments_reserve lets a segment have no more than 100.00 MiB"),
        "{text}"
    );
}

#[test]
fn what_no_fraction_would_allow_is_larger_than_the_device() {
    BenchTop::under_each_policy(100 * MIB, "", |top| {
        top.allocator.set_memory_fraction(0.5).unwrap();
        let text = top.oom(200 * MIB).to_string();
        assert!(text.ends_with("The request is larger than the whole device."), "{text}");
    });
}

/// A program of some hundred requests and frees that run out of memory sooner or later.
struct Program {
    memory_bytes: u64,
    /// Bytes to ask for, or which of the live blocks to free.
    steps: Vec<Result<u64, u64>>,
}

impl Program {
    fn new(seed: u64) -> Program {
        let mut random = Random::new(seed);
        let scale = *random.pick(&[1, 5, 8]);
        let sizes: &[u64] =
            if random.chance(0.5) { &[1, 3, 10, 30, 50] } else { &[2, 4, 7, 15, 45] };
        let steps = (0..120).map(|_| {
            let size_bytes = scale * random.pick(sizes) * MIB;
            if random.chance(0.6) { Ok(size_bytes) } else { Err(random.next_u64()) }
        });
        Program { steps: steps.collect(), memory_bytes: 200 * scale * MIB }
    }

    /// Runs it under some settings: where it ran out of memory, and what was said of it.
    fn run(&self, settings: &str, policy: &Policy) -> Option<(usize, String)> {
        let top = BenchTop::new(self.memory_bytes, settings, policy.clone());
        let mut live = Vec::new();
        for (at, step) in self.steps.iter().enumerate() {
            match *step {
                Ok(size_bytes) => match top.allocator.malloc(size_bytes, MAIN) {
                    Ok(addr) => live.push(addr),
                    Err(error) => return Some((at, error.to_string())),
                },
                Err(which) if !live.is_empty() => {
                    let addr = live.swap_remove((which % live.len() as u64) as usize);
                    top.allocator.free(addr).unwrap();
                }
                Err(_) => {}
            }
        }
        None
    }
}

/// How many random programs were told these words under some settings, and how many of them came
/// further when they did as they were told.
fn count_told(settings: &str, words: &str, told: &str) -> (u32, u32) {
    let (mut told_count, mut helped_count) = (0, 0);
    for policy in [Policy::larder(), Policy::torch_2_11()] {
        for program in (0..1000).map(Program::new) {
            let Some((at, text)) = program.run(settings, &policy) else { continue };
            if text.contains(words) {
                told_count += 1;
                let after = program.run(told, &policy);
                helped_count += u32::from(after.is_none_or(|(later, _)| later > at));
            }
        }
    }
    println!("{words}: {helped_count} of {told_count}");
    (told_count, helped_count)
}

#[test]
fn who_does_as_told_comes_further() {
    let (on, fine) = ("expandable_segments:True", "expandable_segments:True,page_size_mb:2");
    let (told, helped) = count_told("", "set expandable_segments:True", on);
    assert!(told > 100 && told - helped <= told / 50, "a block may come to lie elsewhere");
    let (told, helped) = count_told(on, "set page_size_mb:2", fine);
    assert!(told > 100 && told - helped <= told / 100);
    let (told, helped) = count_told("", "with page_size_mb:2 in LARDER_CONF may", fine);
    assert!(told > 100 && told - helped <= told / 20);
}
