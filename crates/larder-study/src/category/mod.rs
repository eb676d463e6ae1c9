//! Categories: what each allocation of a recording is for. They are told by its call stack, by who
//! gave it back, and by what became of others from the same place, so that the program need not
//! help.

mod judge;
mod life;
mod module;
mod own;
mod place;

pub use module::{module_of, module_stack};
pub use own::{OwnError, OwnRules};

use std::fmt;

use larder_snapshot::Snapshot;

use crate::recording::Origin;

/// What an allocation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// Weights and buffers of a model, gathered ones included.
    Parameters,
    /// Gradients of parameters.
    Gradients,
    /// What an optimizer keeps from step to step.
    Optimizer,
    /// What the forward pass leaves for the backward pass.
    Activations,
    /// Keys and values of earlier tokens.
    Caches,
    /// What the program feeds its model with.
    Inputs,
    /// What a library or a layer keeps for itself.
    Workspaces,
    /// What is gone again before the step goes on.
    Temporaries,
    /// Nothing tells.
    Unknown,
    /// A category of the person's own, by its number.
    Own(u16),
}

/// Those that Larder knows, in the order in which they are shown.
pub const KNOWN: [Category; 9] = [
    Category::Parameters,
    Category::Gradients,
    Category::Optimizer,
    Category::Activations,
    Category::Caches,
    Category::Inputs,
    Category::Workspaces,
    Category::Temporaries,
    Category::Unknown,
];

const NAMES: [&str; KNOWN.len()] = [
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "caches",
    "inputs",
    "workspaces",
    "temporaries",
    "unknown",
];

/// The category of every allocation of a workload.
#[derive(Clone, Debug, Default)]
pub struct Categories {
    /// By the allocations' IDs.
    all: Vec<Category>,
    /// The names of the person's own.
    own: Vec<String>,
}

impl Categories {
    /// Those of the allocations that a device's trace tells of. `origins` says what each is in it,
    /// by its ID; where a rule of the person's own holds, it counts.
    pub fn of(
        snapshot: &Snapshot,
        device: u32,
        origins: &[Origin],
        rules: &OwnRules,
    ) -> Categories {
        let lives = life::lives(snapshot, device, origins);
        let mut all = judge::judged(snapshot, &lives);
        rules.overrule(snapshot, device, &lives, &mut all);
        Categories { all, own: rules.names() }
    }

    /// The category of an allocation; unknown where nothing was recorded of it.
    pub fn get(&self, id: u64) -> Category {
        usize::try_from(id)
            .ok()
            .and_then(|id| self.all.get(id))
            .copied()
            .unwrap_or(Category::Unknown)
    }

    /// Whether anything is known of any allocation.
    pub fn tell(&self) -> bool {
        self.all.iter().any(|&category| category != Category::Unknown)
    }

    /// All there are, in the order in which they are shown: the person's own first.
    pub fn kinds(&self) -> Vec<Category> {
        (0..self.own.len() as u16).map(Category::Own).chain(KNOWN).collect()
    }

    /// The name of a category.
    pub fn name(&self, category: Category) -> &str {
        match category {
            Category::Own(number) => &self.own[usize::from(number)],
            known => known.known_name(),
        }
    }
}

impl Category {
    /// The name of one that Larder knows.
    fn known_name(self) -> &'static str {
        let at = KNOWN.iter().position(|&known| known == self);
        at.map_or("own", |at| NAMES[at])
    }

    /// The one of this name.
    fn by_name(name: &str) -> Option<Category> {
        NAMES.iter().position(|&known| known == name).map(|at| KNOWN[at])
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.known_name())
    }
}
