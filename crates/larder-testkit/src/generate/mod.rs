//! Random scripts from a seed, shaped like what programs do.

mod graphs;
mod lending;
mod pools;

use std::collections::VecDeque;

use larder_core::types::{GIB, KIB, MIB};

use graphs::Saved;
use larder_sim::random::Random;
use larder_sim::script::Op;
use pools::{Pool, Scope};

/// What kind of script to make up. Probabilities are per step.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // Each is a choice of its own; any mixture is legal.
pub struct GenerateOptions {
    /// How many operations. The closing ones, which balance what is still open, come on top.
    pub steps: usize,
    /// How many streams, from 1 to 4.
    pub streams: u32,
    /// Around how many allocations are live at a time.
    pub live_target: usize,
    /// No allocation is made that would bring the live bytes above this.
    pub live_bytes_max: u64,
    /// No allocation is larger than this.
    pub size_bytes_max: u64,
    /// Probability of using a block on another stream.
    pub record_probability: f64,
    /// Probability of a stream's work being done.
    pub sync_probability: f64,
    /// Probability of emptying the cache.
    pub empty_probability: f64,
    /// Probability of a new cap on the memory.
    pub fraction_probability: f64,
    /// Probability of resetting the peaks, and of resetting the sums.
    pub reset_probability: f64,
    /// Whether private pools are made, routed to and released, some of them under graph capture.
    pub pools: bool,
    /// Whether, with pools, captures go over several streams that wait for each other, and layouts
    /// of pools are saved and put back.
    pub graphs: bool,
    /// Whether pools are there to lend, instead of being routed to: many of them, switched on and
    /// off.
    pub lending: bool,
    /// Whether a block that was used on another stream while a scope was open is freed while one
    /// is, and with graphs the other way round too. PyTorch keeps what it noted of a captured use,
    /// by the place of its own record on the host, when such a block is freed otherwise, and holds
    /// it against whatever is recorded in that place next. Few such blocks wait for the end of a
    /// scope at a time, because PyTorch takes them back in the order of a hash table.
    pub uses_stay_apart: bool,
    /// Whether only a graph capture is one, as since PyTorch 2.13, and not any open scope: what the
    /// uses of a block stay apart by.
    pub captures_are_marked: bool,
    /// Probability of doing something about pools, if there are any.
    pub pool_probability: f64,
    /// Whether all that is still live is freed at the end.
    pub free_all_at_end: bool,
}

impl Default for GenerateOptions {
    /// A thousand steps on three streams of an 80 GiB device, without pools.
    fn default() -> GenerateOptions {
        GenerateOptions {
            steps: 1000,
            streams: 3,
            live_target: 100,
            live_bytes_max: 40 * GIB,
            size_bytes_max: 2 * GIB,
            record_probability: 0.05,
            sync_probability: 0.03,
            empty_probability: 0.002,
            fraction_probability: 0.001,
            reset_probability: 0.002,
            pools: false,
            graphs: false,
            lending: false,
            uses_stay_apart: false,
            captures_are_marked: false,
            pool_probability: 0.03,
            free_all_at_end: false,
        }
    }
}

/// Makes one random script. Equal seeds and options give equal scripts.
#[derive(Debug)]
pub struct Generator {
    options: GenerateOptions,
    random: Random,
    ops: Vec<Op>,
    id_next: u64,
    live: VecDeque<Live>,
    live_bytes: u64,
    /// Sizes asked for lately: programs ask for the same ones again and again.
    recent_sizes: VecDeque<u64>,
    burst: Burst,
    pools: Vec<Pool>,
    pool_next: u32,
    /// The open scopes, oldest first.
    scopes: Vec<Scope>,
    /// The streams under capture, the one it began on first.
    captured: Vec<u32>,
    /// Used blocks that were freed while scopes were open, since something was last allocated while
    /// none was.
    deferred: u32,
    saved: Vec<Saved>,
    checkpoint_next: u32,
}

/// How many frees may be put off at a time where uses stay apart.
const DEFERRED_MAX: u32 = 2;

#[derive(Clone, Copy, Debug)]
struct Live {
    id: u64,
    size_bytes: u64,
    /// The pool that it was routed to.
    pool: Option<u32>,
    /// It was used on another stream while a scope was open.
    used_inside: bool,
    /// It was used on another stream while none was.
    used_outside: bool,
}

impl Live {
    fn is_used(&self) -> bool {
        self.used_inside || self.used_outside
    }
}

/// A stretch of steps with one intention: to fill up, to free, or to hold the level.
#[derive(Clone, Copy, Debug)]
struct Burst {
    steps_left: u64,
    alloc_probability: f64,
    order: Order,
    stream: u32,
}

/// In which order things are freed.
#[derive(Clone, Copy, Debug)]
enum Order {
    LastFirst,
    FirstFirst,
    Random,
}

impl Generator {
    /// The generator that belongs to `seed`.
    pub fn new(seed: u64, options: GenerateOptions) -> Generator {
        assert!((1..=4).contains(&options.streams), "a script has 1 to 4 streams");
        let burst =
            Burst { steps_left: 0, alloc_probability: 1.0, order: Order::Random, stream: 0 };
        Generator {
            options,
            random: Random::new(seed),
            ops: Vec::new(),
            id_next: 1,
            live: VecDeque::new(),
            live_bytes: 0,
            recent_sizes: VecDeque::new(),
            burst,
            pools: Vec::new(),
            pool_next: 1,
            scopes: Vec::new(),
            captured: Vec::new(),
            deferred: 0,
            saved: Vec::new(),
            checkpoint_next: 1,
        }
    }

    /// The script.
    pub fn generate(mut self) -> Vec<Op> {
        while self.ops.len() < self.options.steps {
            self.step();
        }
        self.end_capture();
        while let Some(index) = self.pools.len().checked_sub(1) {
            self.end_routing(index);
            self.release(index);
        }
        while self.options.free_all_at_end && !self.live.is_empty() {
            self.free();
        }
        self.ops
    }

    fn step(&mut self) {
        // What makes a capture a graph comes often.
        let more = match (self.options.graphs, self.in_graph()) {
            (_, true) => 8.0,
            (true, false) => 3.0,
            (false, false) => 1.0,
        };
        if self.options.pools && self.random.chance(self.options.pool_probability * more) {
            self.pool_step();
        } else if self.random.chance(self.options.record_probability * more.min(4.0)) {
            self.record();
        } else if self.random.chance(self.options.sync_probability) {
            self.sync();
        } else if self.random.chance(self.options.empty_probability) {
            self.empty();
        } else if self.random.chance(self.options.fraction_probability) {
            let fraction = *self.random.pick(&[1.0, 1.0, 0.9, 0.75, 0.5]);
            self.ops.push(Op::Fraction { fraction });
        } else if self.random.chance(self.options.reset_probability) {
            let reset = *self.random.pick(&[Op::ResetPeak, Op::ResetAccumulated]);
            self.ops.push(reset);
        } else {
            self.alloc_or_free();
        }
    }

    // Allocations.

    fn alloc_or_free(&mut self) {
        if self.burst.steps_left == 0 {
            self.burst = self.next_burst();
        }
        self.burst.steps_left -= 1;
        if self.live.is_empty() || self.random.chance(self.burst.alloc_probability) {
            self.alloc();
        } else {
            self.free();
        }
    }

    fn next_burst(&mut self) -> Burst {
        let live = self.live.len();
        let target = self.options.live_target;
        // Bursts wander freely around the target and are driven back when they strayed far.
        let alloc_probability = if live > target * 2 {
            0.1
        } else if live < target / 4 {
            0.9
        } else {
            *self.random.pick(&[0.03, 0.3, 0.5, 0.5, 0.7, 0.97])
        };
        Burst {
            steps_left: self.random.between(1, 64),
            alloc_probability,
            order: *self.random.pick(&[Order::LastFirst, Order::FirstFirst, Order::Random]),
            stream: self.any_stream(),
        }
    }

    fn alloc(&mut self) {
        let size_bytes = self.size_bytes();
        if self.live_bytes + size_bytes > self.options.live_bytes_max {
            // There is always something to free here, unless a single block is over the cap.
            return self.free();
        }
        let strays = self.random.chance(0.1);
        let stream = if strays { self.any_stream() } else { self.burst_stream() };
        self.alloc_on(size_bytes, stream);
    }

    fn alloc_on(&mut self, size_bytes: u64, stream: u32) {
        if !self.is_inside() {
            self.deferred = 0;
        }
        let id = self.id_next;
        self.id_next += 1;
        let pool = self.route(stream);
        self.live.push_back(Live { id, size_bytes, pool, used_inside: false, used_outside: false });
        self.live_bytes += size_bytes;
        self.ops.push(Op::Alloc { id, size_bytes, stream });
    }

    fn free(&mut self) {
        let last = self.live.len().saturating_sub(1);
        let index = match self.burst.order {
            Order::LastFirst => last,
            Order::FirstFirst => 0,
            Order::Random => self.random.below(last as u64 + 1) as usize,
        };
        let freed = self.live.get(index).filter(|live| self.may_free(live)).copied();
        let freed = freed.or_else(|| self.live.iter().find(|live| self.may_free(live)).copied());
        match freed {
            Some(live) => self.free_these(&[live]),
            // Every step makes an operation, or a script of large blocks might never end.
            None => self.ops.push(Op::ResetPeak),
        }
    }

    /// Whether the allocator is taken to be inside of a capture.
    fn is_inside(&self) -> bool {
        if self.options.captures_are_marked {
            !self.captured.is_empty()
        } else {
            !self.scopes.is_empty()
        }
    }

    /// Whether the block may be freed here.
    fn may_free(&self, live: &Live) -> bool {
        let GenerateOptions { uses_stay_apart, graphs, .. } = self.options;
        if !uses_stay_apart || !live.is_used() {
            return true;
        }
        if !self.is_inside() {
            return !live.used_inside;
        }
        !(graphs && live.used_outside) && self.deferred < DEFERRED_MAX
    }

    /// Frees these blocks, wherever they are.
    fn free_these(&mut self, blocks: &[Live]) {
        for block in blocks {
            self.live.retain(|live| live.id != block.id);
            self.live_bytes -= block.size_bytes;
            self.deferred += u32::from(block.is_used() && self.is_inside());
            self.ops.push(Op::Free { id: block.id });
        }
    }

    fn size_bytes(&mut self) -> u64 {
        if !self.recent_sizes.is_empty() && self.random.chance(0.6) {
            let index = self.random.below(self.recent_sizes.len() as u64) as usize;
            return self.recent_sizes[index];
        }
        let size_bytes = fresh_size(&mut self.random).min(self.options.size_bytes_max);
        self.recent_sizes.push_back(size_bytes);
        if self.recent_sizes.len() > 24 {
            self.recent_sizes.pop_front();
        }
        size_bytes
    }

    // Streams and the cache.

    fn any_stream(&mut self) -> u32 {
        self.random.below(u64::from(self.options.streams)) as u32
    }

    fn record(&mut self) {
        if self.live.is_empty() {
            return self.alloc_or_free();
        }
        // In a graph it is mostly what was captured just now that other streams use.
        let recent = if self.in_graph() { 6 } else { self.live.len() };
        let from_end = self.random.below(recent.min(self.live.len()) as u64) as usize;
        let index = self.live.len() - 1 - from_end;
        let id = self.live[index].id;
        let strays = !self.in_graph() || self.random.chance(0.2);
        let stream = if strays { self.any_stream() } else { self.captured_stream() };
        let inside = self.is_inside();
        let live = &mut self.live[index];
        if self.options.uses_stay_apart && self.options.graphs {
            let other_side = if inside { live.used_outside } else { live.used_inside };
            if other_side {
                return self.alloc_or_free();
            }
        }
        if inside {
            live.used_inside = true;
        } else {
            live.used_outside = true;
        }
        self.ops.push(Op::Record { id, stream });
    }

    /// A stream under capture has no work to finish, so it is never the one.
    fn sync(&mut self) {
        let stream = self.any_stream();
        if self.captured.contains(&stream) {
            return self.alloc_or_free();
        }
        self.ops.push(Op::Sync { stream });
    }

    fn empty(&mut self) {
        if !self.captured.is_empty() {
            return self.alloc_or_free();
        }
        self.ops.push(Op::Empty);
    }
}

/// A size of some class that allocators treat in a way of its own.
fn fresh_size(random: &mut Random) -> u64 {
    /// Steps to either side of a limit, where an off-by-one would show.
    const EDGES: [i64; 7] = [-513, -512, -1, 0, 1, 512, 513];
    let near = |random: &mut Random, limit: u64| limit.saturating_add_signed(*random.pick(&EDGES));
    match random.below(100) {
        0..=19 => random.between(1, 512),
        20..=44 => random.between(1, 512) * 512,
        45..=54 => random.between(256 * KIB, MIB),
        55..=64 => near(random, MIB),
        65..=70 => near(random, 10 * MIB),
        71..=85 => random.between(MIB, 20 * MIB),
        86..=91 => random.between(1, 16) * 2 * MIB,
        92..=97 => random.between(20 * MIB, 256 * MIB),
        _ => random.between(256 * MIB, 2 * GIB),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use larder_sim::script::Script;

    fn script(seed: u64, pools: bool) -> Vec<Op> {
        let graphs = pools && seed.is_multiple_of(2);
        let options = GenerateOptions { steps: 5000, pools, graphs, ..GenerateOptions::default() };
        Generator::new(seed, options).generate()
    }

    #[test]
    fn a_seed_gives_one_script_and_the_script_is_well_formed() {
        for seed in 0..20 {
            let ops = script(seed, seed % 4 > 1);
            assert_eq!(ops, script(seed, seed % 4 > 1));
            let text: Vec<String> = ops.iter().map(Op::to_string).collect();
            // The reader refuses IDs that are not fresh, not allocated, or freed twice.
            assert_eq!(Script::parse(&text.join("\n")), Ok(ops));
        }
        assert_ne!(script(1, false), script(2, false));
    }

    #[test]
    fn a_script_has_some_of_everything() {
        let mut counts: HashMap<String, usize> = HashMap::new();
        for op in (1..5).flat_map(|seed| script(seed, true)) {
            let word = op.to_string().split(' ').next().map(String::from);
            *counts.entry(word.unwrap()).or_default() += 1;
        }
        assert_eq!(counts.len(), 21, "{counts:?}");
        assert!(counts["alloc"] > 6000 && counts["free"] > 6000, "{counts:?}");
        let plain = script(1, false);
        assert!(!plain.iter().any(|op| op.to_string().starts_with("pool")));
        assert!(!plain.iter().any(|op| op.to_string().starts_with("capture")));
    }

    #[test]
    fn the_limits_are_kept() {
        let options = GenerateOptions {
            steps: 3000,
            streams: 1,
            live_bytes_max: 100 * MIB,
            size_bytes_max: 30 * MIB,
            free_all_at_end: true,
            ..GenerateOptions::default()
        };
        let (mut sizes, mut live_bytes) = (HashMap::new(), 0);
        for op in Generator::new(9, options).generate() {
            match op {
                Op::Alloc { id, size_bytes, stream } => {
                    assert!(size_bytes <= 30 * MIB && stream == 0);
                    sizes.insert(id, size_bytes);
                    live_bytes += size_bytes;
                    assert!(live_bytes <= 100 * MIB);
                }
                Op::Free { id } => live_bytes -= sizes.remove(&id).unwrap(),
                _ => {}
            }
        }
        assert!(sizes.is_empty(), "all was freed at the end");
    }
}
