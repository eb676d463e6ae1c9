//! Judging: what each allocation is for, by where it was asked for and what became of it.

use std::collections::HashMap;

use larder_snapshot::{Snapshot, StackId};

use super::Category;
use super::life::Life;
use super::place::{Place, Places, is_of_python};

/// The category of each life.
pub(super) fn judged(snapshot: &Snapshot, lives: &[Life]) -> Vec<Category> {
    if !has_python(snapshot, lives) {
        return vec![Category::Unknown; lives.len()];
    }
    let facts = Facts::of(snapshot, lives);
    let lives = lives.iter().zip(&facts.told);
    let mut all: Vec<Category> = lives.map(|(life, told)| facts.category(life, *told)).collect();
    facts.judge_old(&mut all);
    all
}

/// Whether any stack has a frame of Python: without one, nothing tells a backward pass from others.
fn has_python(snapshot: &Snapshot, lives: &[Life]) -> bool {
    let mut stacks = lives.iter().filter_map(|life| life.stack);
    stacks
        .any(|stack| snapshot.stack(stack).any(|frame| is_of_python(snapshot.text(frame.filename))))
}

/// Where an allocation was asked for, and where it was given back.
#[derive(Clone, Copy, Debug)]
struct Told {
    begin: Place,
    end: Option<Place>,
}

/// How much memory cuBLAS and cuBLASLt ask for to work in, once for each thread: on cards since
/// Hopper, and on older ones.
const WORKSPACES_BYTES: [u64; 3] = [32 << 20, 1 << 20, 8_519_680];

/// What became of allocations of one size from one stack, and of how many.
#[derive(Clone, Copy, Debug, Default)]
struct Fates {
    in_backward: u64,
    in_step: u64,
    elsewhere: u64,
    /// Over how many entries the longest of those that went elsewhere lasted.
    longest: usize,
    /// The last entry that asked for one which is gone.
    last_gone: usize,
}

/// What has to be known of all of them to judge one.
struct Facts<'a> {
    lives: &'a [Life],
    told: Vec<Told>,
    fates: HashMap<(Option<StackId>, u64), Fates>,
    /// Whether the program trains: whether it makes a backward pass, or keeps much for one.
    trains: bool,
    /// The last entry of all, and the last at which an optimizer did something.
    last: usize,
    last_step: Option<usize>,
    /// The first entries that asked for what may be a workspace, by place and size.
    workspaces: HashMap<(Place, u64), usize>,
    /// The last entry that asked for a gradient which was dropped.
    last_dropped: Option<usize>,
    /// The entries that asked for memory in a forward pass, in order.
    forwards: Vec<usize>,
    /// How many parameters there are of a size.
    sizes: HashMap<u64, u64>,
    /// The lines of Megatron's buffers, by their stacks: where two are made, the first is for
    /// parameters.
    has_two_buckets: bool,
    first_bucket: Option<u32>,
    snapshot: &'a Snapshot,
}

impl<'a> Facts<'a> {
    fn of(snapshot: &'a Snapshot, lives: &'a [Life]) -> Facts<'a> {
        let mut facts = Facts {
            lives,
            told: told(snapshot, lives),
            fates: HashMap::new(),
            trains: false,
            last: 0,
            last_step: None,
            workspaces: HashMap::new(),
            last_dropped: None,
            forwards: Vec::new(),
            sizes: HashMap::new(),
            has_two_buckets: false,
            first_bucket: None,
            snapshot,
        };
        for (life, told) in lives.iter().zip(facts.told.clone()) {
            facts.note(life, told);
        }
        let pairs = || lives.iter().zip(&facts.told);
        let kept =
            pairs().filter(|(life, told)| told.begin == Place::Forward && life.end.is_none());
        facts.trains = facts.last_step.is_some()
            || pairs().any(|(life, told)| life.begin.is_some() && told.begin == Place::Backward)
            || kept.count() * 5 > facts.forwards.len();
        facts
    }

    fn note(&mut self, life: &Life, told: Told) {
        let Some(begin) = life.begin else { return };
        self.last = self.last.max(begin).max(life.end.unwrap_or(0));
        if WORKSPACES_BYTES.contains(&life.bytes) {
            self.workspaces.entry((told.begin, life.bytes)).or_insert(begin);
        }
        match told.begin {
            Place::Stepping | Place::Keeping => self.last_step = self.last_step.max(Some(begin)),
            Place::Forward => self.forwards.push(begin),
            Place::Building | Place::Gathering => *self.sizes.entry(life.bytes).or_default() += 1,
            Place::Bucketing => {
                let line = self.line(life);
                self.has_two_buckets |= self.first_bucket.is_some_and(|first| Some(first) != line);
                self.first_bucket = line.into_iter().chain(self.first_bucket).min();
            }
            _ => {}
        }
        match told.end {
            Some(Place::Zeroing) => {
                self.last_step = self.last_step.max(life.end);
                self.last_dropped = self.last_dropped.max(Some(begin));
            }
            Some(Place::Stepping) => self.last_step = self.last_step.max(life.end),
            _ => {}
        }
        let fates = self.fates.entry((life.stack, life.bytes)).or_default();
        match told.end {
            None => return,
            Some(Place::Backward) => fates.in_backward += 1,
            Some(Place::Stepping | Place::Keeping) => fates.in_step += 1,
            Some(_) => {
                fates.elsewhere += 1;
                fates.longest = fates.longest.max(life.end.unwrap_or(begin) - begin);
            }
        }
        fates.last_gone = fates.last_gone.max(begin);
    }

    /// The line of the innermost frame that is not PyTorch's.
    fn line(&self, life: &Life) -> Option<u32> {
        let mut frames = self.snapshot.stack(life.stack?);
        let own = frames.find(|frame| !self.snapshot.text(frame.filename).contains("/torch/"));
        own.map(|frame| frame.line)
    }

    fn category(&self, life: &Life, told: Told) -> Category {
        // What is older than the recording is judged by its size.
        if life.begin.is_none() && life.stack.is_none() {
            return Category::Unknown;
        }
        match told.begin {
            Place::Building | Place::Gathering => Category::Parameters,
            Place::Bucketing if self.has_two_buckets && self.line(life) == self.first_bucket => {
                Category::Parameters
            }
            Place::Bucketing => Category::Gradients,
            Place::Keeping => Category::Optimizer,
            Place::Caching => Category::Caches,
            Place::Loading => Category::Inputs,
            // A batch that a wrapper casts is kept for the backward pass as any other.
            Place::Passing if told.end == Some(Place::Backward) => Category::Activations,
            Place::Passing | Place::Zeroing => Category::Temporaries,
            Place::Reducing => match told.end {
                None | Some(Place::Zeroing | Place::Outside) => Category::Gradients,
                Some(_) => Category::Temporaries,
            },
            Place::Stepping => self.of_step(life, told),
            Place::Backward => self.of_backward(life, told),
            Place::Forward => self.of_forward(life, told),
            Place::Outside => self.of_program(life, told),
            Place::Unknown => Category::Unknown,
        }
    }

    /// What outlasts the step is kept, such as the momentum of plain descent.
    fn of_step(&self, life: &Life, told: Told) -> Category {
        let fates = self.fates_of(life);
        match told.end {
            Some(Place::Stepping | Place::Keeping) => Category::Temporaries,
            None if fates.in_step > 0 => Category::Temporaries,
            _ => Category::Optimizer,
        }
    }

    /// What outlasts the pass is a gradient.
    fn of_backward(&self, life: &Life, told: Told) -> Category {
        match told.end {
            Some(Place::Backward | Place::Forward | Place::Passing) => Category::Temporaries,
            Some(_) => Category::Gradients,
            None if life.begin < self.last_dropped => Category::Workspaces,
            None if self.is_workspace(life, told) => Category::Workspaces,
            None if self.sizes.contains_key(&life.bytes) => Category::Gradients,
            None if life.begin < self.last_step => Category::Workspaces,
            None => Category::Temporaries,
        }
    }

    /// What the backward pass lets go of was kept for it.
    fn of_forward(&self, life: &Life, told: Told) -> Category {
        match told.end {
            Some(Place::Backward) => Category::Activations,
            Some(_) => Category::Temporaries,
            None => self.of_forward_kept(life, told),
        }
    }

    /// What is there at the end of the recording is what others from there were, or what it has
    /// outlasted all others as.
    fn of_forward_kept(&self, life: &Life, told: Told) -> Category {
        let begin = life.begin.unwrap_or(0);
        let fates = self.fates_of(life);
        if Some(begin) < self.last_step || self.is_workspace(life, told) {
            return Category::Workspaces;
        }
        if !self.trains {
            let outlasts = begin < fates.last_gone;
            return if outlasts { Category::Workspaces } else { Category::Temporaries };
        }
        let is_old = self.last - begin > fates.longest;
        match () {
            () if fates.elsewhere == 0 || is_old => Category::Activations,
            () if fates.in_backward > fates.elsewhere => Category::Activations,
            () => Category::Temporaries,
        }
    }

    /// Whether it is the first of a workspace's size in its thread.
    fn is_workspace(&self, life: &Life, told: Told) -> bool {
        self.workspaces.get(&(told.begin, life.bytes)).copied() == life.begin
            && life.begin.is_some()
    }

    /// What the program makes by itself: to feed a forward pass, for the moment, or between a
    /// forward and a backward pass.
    fn of_program(&self, life: &Life, told: Told) -> Category {
        let fates = self.fates_of(life);
        let begin = life.begin.unwrap_or(0);
        let next = self.forwards.partition_point(|&forward| forward < begin);
        match (told.end, self.forwards.get(next), life.end) {
            (Some(Place::Backward), _, _) => Category::Activations,
            (_, Some(&forward), Some(end)) if forward < end => Category::Inputs,
            (None, None, _) if fates.in_backward > fates.elsewhere => Category::Activations,
            (None, None, _) if fates.elsewhere > 0 => Category::Inputs,
            (None, None, _) if self.trains && next > 0 => Category::Activations,
            (None, _, _) => Category::Inputs,
            _ => Category::Temporaries,
        }
    }

    fn fates_of(&self, life: &Life) -> Fates {
        self.fates.get(&(life.stack, life.bytes)).copied().unwrap_or_default()
    }

    /// Blocks that are older than the recording have no stack. Those that stay are parameters, and
    /// the optimizer's if that had made its own before: of each size as many parameters as there
    /// are gradients.
    fn judge_old(&self, all: &mut [Category]) {
        let makes_state = all.contains(&Category::Optimizer);
        let trains = self.last_step.is_some();
        let mut gradients: HashMap<u64, u64> = HashMap::new();
        if trains && !makes_state {
            let steps = self.steps();
            for (life, category) in self.lives.iter().zip(&*all) {
                if *category == Category::Gradients {
                    *gradients.entry(life.bytes.next_multiple_of(512)).or_default() += 1;
                }
            }
            for count in gradients.values_mut() {
                *count = count.div_ceil(steps);
            }
        }
        let mut met: HashMap<u64, u64> = HashMap::new();
        for (life, category) in self.lives.iter().zip(all) {
            let is_old = life.begin.is_none() && life.stack.is_none();
            if !is_old || life.end.is_some() {
                continue;
            }
            let size = life.bytes.next_multiple_of(512);
            let met = met.entry(size).or_default();
            *met += 1;
            *category = match gradients.get(&size) {
                _ if !trains || makes_state => Category::Parameters,
                Some(&count) if *met <= count => Category::Parameters,
                Some(_) => Category::Optimizer,
                None => Category::Unknown,
            };
        }
    }

    /// How many steps there were: how often a backward pass was followed by something else than
    /// what it computes once more.
    fn steps(&self) -> u64 {
        let (mut steps, mut is_in_backward) = (0, false);
        for told in &self.told {
            match told.begin {
                Place::Backward => is_in_backward = true,
                Place::Stepping | Place::Outside | Place::Loading if is_in_backward => {
                    (steps, is_in_backward) = (steps + 1, false);
                }
                _ => {}
            }
        }
        (steps + u64::from(is_in_backward)).max(1)
    }
}

/// Where each was asked for and given back. Where frees were recorded without stacks of their own,
/// what the program was doing just before tells it.
fn told(snapshot: &Snapshot, lives: &[Life]) -> Vec<Told> {
    let mut places = Places::new(snapshot);
    let (mut same, mut count) = (0_u64, 0_u64);
    for life in lives.iter().filter(|life| life.begin.is_some() && life.end.is_some()) {
        if places.of(life.stack) != Place::Backward {
            (same, count) = (same + u64::from(life.end_stack == life.stack), count + 1);
        }
    }
    let is_recorded = same * 20 < count * 19;
    let begins: Vec<(usize, Place)> =
        lives.iter().filter_map(|life| Some((life.begin?, places.of(life.stack)))).collect();
    let before = |end: usize| {
        let next = begins.partition_point(|&(begin, _)| begin < end);
        next.checked_sub(1).map_or(Place::Outside, |last| begins[last].1)
    };
    lives
        .iter()
        .map(|life| {
            let begin = match (life.begin, life.stack) {
                (None, None) => Place::Unknown,
                (_, stack) => places.of(stack),
            };
            let end = life
                .end
                .map(|end| if is_recorded { places.of(life.end_stack) } else { before(end) });
            Told { begin, end }
        })
        .collect()
}
