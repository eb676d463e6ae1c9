//! Answers: what a comparison comes to, what to set, and which command tells more.

use larder_core::Policy;

use crate::compare::Row;
use crate::replay::Setup;
use crate::report::quote::quoted;
use crate::report::summary::{conf_name, count};
use crate::settings::{own_keys, variables, without_fraction};

/// How a person asks on: what stands behind `larder replay` and behind `larder fit` for the same program,
/// but for the policy and the settings.
#[derive(Clone, Debug)]
pub struct Commands {
    /// The file, and the options of a run.
    pub replay: String,
    /// The file, and the options of a search.
    pub fit: String,
}

impl Commands {
    /// Those for a file alone.
    pub fn of(file: &str) -> Commands {
        Commands { replay: quoted(file), fit: quoted(file) }
    }
}

/// One run of a comparison.
#[derive(Clone, Copy)]
struct Run<'a> {
    policy: &'a Policy,
    row: &'a Row,
}

impl Run<'_> {
    fn has_run(&self) -> bool {
        self.row.outcome.ooms == 0
    }

    fn is_held(&self) -> bool {
        self.row.fraction < 1.0
    }

    /// Whether it has settings of Larder's own, but stock PyTorch's policy, under which nobody has them.
    fn is_foreign(&self) -> bool {
        self.policy.is_stock() && !own_keys(&self.row.conf).is_empty()
    }

    fn reserved_bytes(&self) -> i64 {
        self.row.outcome.stats.reserved_bytes.all.peak
    }

    fn name(&self) -> String {
        format!("{} under policy {}", conf_name(&self.row.conf), self.policy.name)
    }

    /// The command that tells what failed in it.
    fn replay(&self, commands: &Commands) -> String {
        let conf = if self.row.is_recorded { String::new() } else { option(&self.row.conf) };
        format!("`larder replay {} --policy {}{conf}`", commands.replay, self.policy.name)
    }

    /// The command that tells how much memory it needs, whatever it was allowed.
    fn fit(&self, commands: &Commands) -> String {
        let is_as_recorded = self.row.is_recorded;
        let conf = without_fraction(&self.row.conf);
        let conf = if is_as_recorded { String::new() } else { option(&conf) };
        format!("`larder fit {} --policy {}{conf}`", commands.fit, self.policy.name)
    }

    /// What is to be set for it, each variable by its name.
    fn variables(&self) -> Option<String> {
        let named = variables(self.policy, &self.row.conf).into_iter();
        let named: Vec<String> =
            named.map(|(name, conf)| format!("{name}={}", quoted(&conf))).collect();
        (!named.is_empty()).then(|| named.join(" and "))
    }
}

/// What is to be set to have such a run, each variable by its name; none where nothing is.
pub fn to_set(policy: &Policy, row: &Row) -> Option<String> {
    Run { policy, row }.variables()
}

/// What a comparison comes to, in a line or two, in every case.
pub fn answer(commands: &Commands, compared: &[(Setup, Vec<Row>)]) -> String {
    let runs: Vec<Run<'_>> = compared
        .iter()
        .flat_map(|(setup, rows)| rows.iter().map(|row| Run { policy: &setup.policy, row }))
        .collect();
    let ran: Vec<Run<'_>> = runs.iter().copied().filter(Run::has_run).collect();
    let held = ran.iter().copied().filter(Run::is_held);
    let lines = match (nearest(&runs), least(&ran)) {
        (None, _) => return String::new(),
        (Some(nearest), None) => nothing_ran(nearest, &runs, commands),
        (_, Some(best)) if held.clone().count() == 0 && runs.iter().any(Run::is_held) => {
            unheld_ran(best, commands)
        }
        // Where some run under the fraction too, they are what can be had with it.
        (_, Some(best)) => {
            let best = least(&held.collect::<Vec<_>>()).unwrap_or(best);
            format!("{}{}", policies_that_ran(compared), some_ran(best, (&ran, &runs), commands))
        }
    };
    format!("\n{lines}")
}

fn nearest<'a>(runs: &[Run<'a>]) -> Option<Run<'a>> {
    runs.iter().copied().min_by_key(|run| (run.row.outcome.ooms, run.reserved_bytes()))
}

fn least<'a>(runs: &[Run<'a>]) -> Option<Run<'a>> {
    let retries = |run: &Run<'_>| run.row.outcome.stats.num_alloc_retries;
    // Of those that come to the same, who says least.
    let words = |run: &Run<'_>| run.row.conf.len();
    let key = |run: &Run<'_>| (run.is_foreign(), run.reserved_bytes(), retries(run), words(run));
    runs.iter().copied().min_by_key(key)
}

fn nothing_ran(nearest: Run<'_>, runs: &[Run<'_>], commands: &Commands) -> String {
    let fewest = nearest.row.outcome.ooms;
    let failures = count(fewest, "failure");
    let most = runs.iter().map(|run| run.row.outcome.ooms).max().unwrap_or(fewest);
    let which = if most == fewest {
        format!("nothing here ran: each had {failures}")
    } else {
        format!("nothing here ran; nearest came {}, with {failures}", nearest.name())
    };
    format!(
        "{which}\n{} says what failed first, and why; {} how much memory it needs\n",
        nearest.replay(commands),
        nearest.fit(commands)
    )
}

/// Nothing ran that was held to a fraction, and something did that was not.
fn unheld_ran(best: Run<'_>, commands: &Commands) -> String {
    format!(
        "the memory fraction is the cause: held to it nothing here runs, and without it {} does; leave the \
         fraction out, or raise it\n{} says how much memory it needs\n",
        best.name(),
        best.fit(commands)
    )
}

/// Which of several policies ran it, where not all did.
fn policies_that_ran(compared: &[(Setup, Vec<Row>)]) -> String {
    let ran = |(_, rows): &&(Setup, Vec<Row>)| rows.iter().any(|row| row.outcome.ooms == 0);
    let (yes, no): (Vec<_>, Vec<_>) = compared.iter().partition(ran);
    if no.is_empty() {
        return String::new();
    }
    let names = |compared: Vec<&(Setup, Vec<Row>)>| {
        let names: Vec<&str> = compared.iter().map(|(setup, _)| setup.policy.name).collect();
        names.join(" and ")
    };
    format!("it runs under policy {}, and under {} with none of these\n", names(yes), names(no))
}

/// Some of all runs ran, and this is the best of them.
fn some_ran(best: Run<'_>, (ran, runs): (&[Run<'_>], &[Run<'_>]), commands: &Commands) -> String {
    let needs_least = ran.iter().any(|run| run.reserved_bytes() > best.reserved_bytes());
    let whole = match (best.row.is_recorded, best.variables()) {
        (true, _) if best.policy.is_stock() => {
            "so the settings that it was recorded with need least".to_owned()
        }
        (_, None) => "so the default settings need least".to_owned(),
        (_, Some(to_set)) if needs_least => {
            format!("so set {to_set}, which needs least of all that ran")
        }
        (_, Some(to_set)) if ran.len() > 1 => {
            format!("so set {to_set}; none of the others needs less")
        }
        (_, Some(to_set)) if runs.len() > 1 => format!("so set {to_set}, which alone ran"),
        (_, Some(to_set)) => format!("so set {to_set}"),
    };
    format!("{whole}; {} says on how small a card it runs then\n", best.fit(commands))
}

/// Settings as an option of a command; none where that would say nothing else than leaving them out.
fn option(conf: &str) -> String {
    format!(" --conf {}", quoted(conf))
}
