//! Answers: what a comparison comes to, what to set, and which command tells more.

use larder_core::Policy;
use larder_core::allocator::default_config;
use larder_core::config::Config;
use larder_core::types::Bytes;

use crate::compare::{Row, heard, is_same};
use crate::replay::Setup;
use crate::report::driver;
use crate::report::quote::quoted;
use crate::report::summary::{conf_name, count};
use crate::settings::{entry_count, own_keys, variables, without_fraction};
use crate::standing::{Standing, said_up};
use crate::worth::{self, TRIFLE};

/// How a person asks on: what stands behind `larder replay` and behind `larder fit` for the same
/// program, but for the policy and the settings.
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

/// What is to be changed about the settings to have a run. Of those that come to the same, the
/// least is advised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    /// Nothing: it was recorded with them.
    AsRecorded,
    /// None are set.
    ToDefault,
    /// Some are set.
    ToSettings,
}

/// One run of a comparison.
#[derive(Clone, Copy)]
struct Run<'a> {
    policy: &'a Policy,
    row: &'a Row,
    /// Whether it goes on costing driver time that the default settings do not.
    is_dear: bool,
}

/// All runs under one policy.
fn runs_of((setup, rows): &(Setup, Vec<Row>)) -> impl Iterator<Item = Run<'_>> {
    let usual = rows.iter().find(|row| row.conf.is_empty());
    let usual = usual.map(|row| row.outcome.driver_last_third);
    rows.iter().map(move |row| {
        let late = row.outcome.driver_last_third;
        let is_dear = usual.is_some_and(|usual| worth::is_dear(late, usual));
        Run { policy: &setup.policy, row, is_dear }
    })
}

impl Run<'_> {
    fn has_run(&self) -> bool {
        self.row.standing == Standing::Runs
    }

    fn is_held(&self) -> bool {
        self.row.fraction < 1.0
    }

    /// Whether it has settings of Larder's own, but stock PyTorch's policy, under which nobody has
    /// them.
    fn is_foreign(&self) -> bool {
        self.policy.is_stock() && !own_keys(&self.row.conf).is_empty()
    }

    fn reserved_bytes(&self) -> i64 {
        self.row.outcome.stats.reserved_bytes.all.peak
    }

    /// What it comes to: the memory that it needs, and how often it gives its cache back for that.
    fn cost(&self) -> (i64, u64) {
        (self.reserved_bytes(), self.row.outcome.stats.num_alloc_retries)
    }

    fn change(&self) -> Change {
        if self.row.is_recorded {
            Change::AsRecorded
        } else if self.is_default() {
            Change::ToDefault
        } else {
            Change::ToSettings
        }
    }

    /// Whether its settings say no more than none would, in whatever words.
    fn is_default(&self) -> bool {
        let as_none = || variables(self.policy, &self.row.conf) == variables(self.policy, "");
        is_same(&self.row.config, &Config::default()) || as_none()
    }

    /// The run under its policy as that has it where nobody gives settings of PyTorch's, if this is
    /// the default one, which is not the same where the policy makes segments expandable by itself.
    fn by_itself<'a>(&self, runs: &[Run<'a>]) -> Option<Run<'a>> {
        if !self.policy.expandable_by_default || self.policy.tight || !self.is_default() {
            return None;
        }
        let config = default_config(self.policy);
        let is_it = |run: &&Run<'_>| run.policy == self.policy && is_same(&run.row.config, &config);
        runs.iter().find(is_it).copied()
    }

    /// How many settings it has that the policy listens to.
    fn key_count(&self) -> usize {
        entry_count(&self.conf())
    }

    /// Its settings, as far as the policy listens to them.
    fn conf(&self) -> String {
        heard(self.policy, &self.row.conf)
    }

    fn name(&self) -> String {
        format!("{} under policy {}", conf_name(&self.row.conf), self.policy.name)
    }

    /// The command that tells what failed in it.
    fn replay(&self, commands: &Commands) -> String {
        let conf = if self.row.is_recorded { String::new() } else { option(&self.conf()) };
        format!("`larder replay {} --policy {}{conf}`", commands.replay, self.policy.name)
    }

    /// The command that tells how much memory it needs, whatever it was allowed.
    fn fit(&self, commands: &Commands) -> String {
        let is_as_recorded = self.row.is_recorded;
        let conf = without_fraction(&self.conf());
        let conf = if is_as_recorded { String::new() } else { option(&conf) };
        format!("`larder fit {} --policy {}{conf}`", commands.fit, self.policy.name)
    }

    /// What is to be set for it, each variable by its name.
    fn variables(&self) -> Option<String> {
        named(&variables(self.policy, &heard(self.policy, &self.row.held_conf)))
    }

    /// What is to be set for its policy alone.
    fn policy_variable(&self) -> Option<String> {
        let mut variables = variables(self.policy, "");
        variables.retain(|(name, _)| *name == "LARDER_CONF");
        named(&variables)
    }
}

fn named(variables: &[(&str, String)]) -> Option<String> {
    let named = variables.iter().map(|(name, conf)| format!("{name}={}", quoted(conf)));
    let named: Vec<String> = named.collect();
    (!named.is_empty()).then(|| named.join(" and "))
}

/// What is to be set to have such a run, each variable by its name; none where nothing is.
pub fn to_set(policy: &Policy, row: &Row) -> Option<String> {
    Run { policy, row, is_dear: false }.variables()
}

/// Which row it is that a comparison advises, counted through all of them; none where none ran.
pub fn advised(compared: &[(Setup, Vec<Row>)]) -> Option<usize> {
    let runs: Vec<Run<'_>> = compared.iter().flat_map(runs_of).collect();
    let ran: Vec<Run<'_>> = runs.iter().copied().filter(Run::has_run).collect();
    let held: Vec<Run<'_>> = ran.iter().copied().filter(Run::is_held).collect();
    let best = least(&held).or_else(|| least(&ran))?;
    runs.iter().position(|run| std::ptr::eq(run.row, best.row))
}

/// What a comparison comes to, in a line or two, in every case.
pub fn answer(commands: &Commands, compared: &[(Setup, Vec<Row>)]) -> String {
    let runs: Vec<Run<'_>> = compared.iter().flat_map(runs_of).collect();
    let ran: Vec<Run<'_>> = runs.iter().copied().filter(Run::has_run).collect();
    let held = ran.iter().copied().filter(Run::is_held);
    let lines = match (nearest(&runs), least(&ran)) {
        (None, _) => return String::new(),
        (Some(nearest), None) => nothing_ran(nearest, &runs, commands),
        (_, Some(best)) if held.clone().count() == 0 && runs.iter().any(Run::is_held) => {
            let maybe =
                |run: &&Run<'_>| run.is_held() && matches!(run.row.standing, Standing::Depends(_));
            match nearest(&runs.iter().filter(maybe).copied().collect::<Vec<_>>()) {
                Some(maybe) => nothing_ran(maybe, &runs, commands),
                None => unheld_ran(best, commands),
            }
        }
        // Where some run under the fraction too, they are what can be had with it.
        (_, Some(best)) => {
            let best = least(&held.collect::<Vec<_>>()).unwrap_or(best);
            let advice = match nothing_to_set(best, (&ran, &runs), commands) {
                Some(nothing) => nothing,
                None => some_ran(best, (&ran, &runs), commands),
            };
            format!("{}{advice}{}", policies_that_ran(compared), other_prices(best, &ran))
        }
    };
    format!("\n{lines}")
}

fn nearest<'a>(runs: &[Run<'a>]) -> Option<Run<'a>> {
    runs.iter().copied().min_by_key(|run| {
        let Row { standing, outcome, .. } = run.row;
        (*standing, outcome.ooms, run.reserved_bytes())
    })
}

fn least<'a>(runs: &[Run<'a>]) -> Option<Run<'a>> {
    // Of those that come to the same, the one with least to change, and of these who says least.
    let change = |run: &Run<'_>| (!run.policy.is_stock(), run.change(), run.row.conf.len());
    let best = runs
        .iter()
        .copied()
        .min_by_key(|run| (run.is_foreign(), run.is_dear, run.cost(), change(run)))?;
    // Each of tight's own settings buys a little memory with driver time: a trifle is not worth
    // one.
    let limit_bytes = (best.reserved_bytes() as f64 * (1.0 + TRIFLE)) as i64;
    let is_near = |run: &Run<'_>| {
        best.policy.tight
            && (run.policy, run.is_dear, run.cost().1) == (best.policy, best.is_dear, best.cost().1)
            && run.reserved_bytes() <= limit_bytes
            && run.key_count() < best.key_count()
    };
    let near = runs.iter().copied().filter(is_near);
    let plainest = near.min_by_key(|run| (run.key_count(), run.cost(), run.row.conf.len()));
    Some(plainest.unwrap_or(best))
}

/// Those that cost much more or much less driver time than the one that is advised, in a sentence
/// each.
fn other_prices(best: Run<'_>, ran: &[Run<'_>]) -> String {
    let own = || ran.iter().filter(|run| run.policy == best.policy && !run.is_foreign());
    let dear = own().filter(|run| run.is_dear && run.reserved_bytes() < best.reserved_bytes());
    let dear = dear.min_by_key(|run| run.cost());
    let best_ns = best.row.outcome.driver.ns;
    let cheap = own().filter(|run| best.policy.tight && run.row.outcome.driver.ns < best_ns / 2);
    let cheap = cheap.min_by_key(|run| (run.row.outcome.driver.ns, run.reserved_bytes()));
    let price = |run: &Run<'_>| {
        let held = Bytes(run.reserved_bytes().max(0) as u64);
        let [time, own_time] = [run, &best].map(|run| driver::time(run.row.outcome.driver));
        format!(
            "{} holds {held}, for {time} of driver time instead of {own_time}",
            conf_name(&run.row.conf)
        )
    };
    let dear = dear.map(|run| format!("{}, and goes on paying for it\n", price(run)));
    let cheap = cheap.map(|run| format!("where time matters more: {}\n", price(run)));
    [dear, cheap].into_iter().flatten().collect()
}

fn nothing_ran(nearest: Run<'_>, runs: &[Run<'_>], commands: &Commands) -> String {
    if let Standing::Depends(from_bytes) = nearest.row.standing {
        let from = from_bytes
            .map_or(String::new(), |bytes| format!(", from {} on", Bytes(said_up(bytes))));
        let set = nearest.variables().map_or(String::new(), |set| format!("; that is {set}"));
        return format!(
            "whether any of these runs depends on what the program was allowed: {} \
             does{from}{set}\n\
             {} says how much memory it needs; --cap or --card makes it sure\n",
            nearest.name(),
            nearest.fit(commands)
        );
    }
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
        "the memory fraction is the cause: held to it nothing here runs, and without it {} does; \
         leave the fraction out, or raise it\n{} says how much memory it needs\n",
        best.name(),
        best.fit(commands)
    )
}

/// Which of several policies ran it, where not all did.
fn policies_that_ran(compared: &[(Setup, Vec<Row>)]) -> String {
    let ran =
        |(_, rows): &&(Setup, Vec<Row>)| rows.iter().any(|row| row.standing == Standing::Runs);
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

/// That no settings are to be set, if all that ran come to the same and this, the best of them, has
/// none or those that the program was recorded with. Where policies are compared, another than
/// stock PyTorch's is to be set too; where one was asked for, it is as given as stock PyTorch's.
fn nothing_to_set(
    best: Run<'_>,
    (ran, runs): (&[Run<'_>], &[Run<'_>]),
    commands: &Commands,
) -> Option<String> {
    let is_given = best.policy.is_stock() || runs.iter().all(|run| run.policy == best.policy);
    let is_level = ran.iter().all(|run| run.cost() == best.cost());
    let does_by_itself = best.by_itself(runs).is_none_or(|run| run.has_run());
    if !is_given || !is_level || !does_by_itself {
        return None;
    }
    let enough = match best.change() {
        Change::AsRecorded => "change nothing: the settings that it was recorded with are enough",
        Change::ToDefault => "set nothing: the default settings are enough",
        Change::ToSettings => return None,
    };
    let same = if ran.len() > 1 { "all that ran need the same, " } else { "" };
    let name = best.policy.name;
    let under =
        if best.policy.is_stock() { String::new() } else { format!(" under policy {name}") };
    let fit = best.fit(commands);
    Some(format!("{same}so {enough}{under}; {fit} says on how small a card it runs\n"))
}

/// Some of all runs ran, and this is the best of them.
fn some_ran(best: Run<'_>, (ran, runs): (&[Run<'_>], &[Run<'_>]), commands: &Commands) -> String {
    let needs_least = ran.iter().any(|run| run.reserved_bytes() > best.reserved_bytes());
    let retries_least = ran.iter().any(|run| run.cost() > best.cost());
    let is_level = ran.iter().all(|run| run.cost() == best.cost());
    // What the policy does by itself needs no words where it comes to the same.
    let own = best.by_itself(runs).filter(|own| own.has_run() && own.cost() == best.cost());
    let (best, to_set) = match own {
        Some(own) => (own, own.policy_variable()),
        None => (best, best.variables()),
    };
    let whole = match (best.row.is_recorded, to_set) {
        (true, _) if best.policy.is_stock() => {
            "so the settings that it was recorded with need least".to_owned()
        }
        (_, None) => "so the default settings need least".to_owned(),
        (_, Some(to_set)) if needs_least => {
            let less = || ran.iter().filter(|run| run.reserved_bytes() < best.reserved_bytes());
            let rest = match (less().any(|run| run.is_dear), less().next()) {
                (true, _) => " and does not go on paying for it".to_owned(),
                (false, Some(_)) => format!(", to {} %", TRIFLE * 100.0),
                (false, None) => String::new(),
            };
            format!("so set {to_set}, which needs least of all that ran{rest}")
        }
        (_, Some(to_set)) if retries_least => {
            format!("so set {to_set}; none of the others needs less, and some try again more often")
        }
        // What needs less is not to be had, or not under the recorded fraction.
        (_, Some(to_set)) if !is_level => format!("so set {to_set}"),
        // Where others fail, one of those that run is to be set.
        (_, Some(to_set)) if ran.len() < runs.len() && ran.len() > 1 => {
            format!("so set {to_set}; none of the others needs less")
        }
        (_, Some(to_set)) if runs.len() > 1 && ran.len() == 1 => {
            format!("so set {to_set}, which alone ran")
        }
        (_, Some(_)) if runs.len() > 1 => {
            "all that ran need the same, so nothing speaks for any of these settings; --conf '' \
             shows the default ones beside them"
                .to_owned()
        }
        (_, Some(to_set)) => format!("it runs with {to_set}"),
    };
    format!("{whole}; {} says on how small a card it runs then\n", best.fit(commands))
}

/// Settings as an option of a command; none where that would say nothing else than leaving them
/// out.
fn option(conf: &str) -> String {
    format!(" --conf {}", quoted(conf))
}
