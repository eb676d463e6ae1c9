//! A person's own rules: a small file with a line for each, a name and a regular expression.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use larder_snapshot::{Snapshot, StackId};
use regex::Regex;

use super::Category;
use super::life::Life;

/// More names than this say nothing to anybody.
const NAMES_MAX: usize = 100;

/// Rules, the first of which counts where several fit.
#[derive(Clone, Debug, Default)]
pub struct OwnRules {
    rules: Vec<(Category, Regex)>,
    names: Vec<String>,
}

/// Why rules cannot be taken; one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnError(String);

impl fmt::Display for OwnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OwnError {}

impl OwnRules {
    /// Reads a file of rules.
    pub fn load(path: &Path) -> Result<OwnRules, OwnError> {
        let said = |what: &dyn fmt::Display| OwnError(format!("{}: {what}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| said(&error))?;
        OwnRules::parse(&text).map_err(|error| said(&error))
    }

    /// Reads rules: `NAME: EXPRESSION`, and comments after `#` at the beginning of a line.
    pub fn parse(text: &str) -> Result<OwnRules, OwnError> {
        let mut rules = OwnRules::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let said = |what: &str| OwnError(format!("line {}: {what}", index + 1));
            let (name, expression) = line
                .split_once(": ")
                .ok_or_else(|| said("a rule is NAME: EXPRESSION, with a space behind the colon"))?;
            let (name, expression) = (name.trim(), expression.trim());
            if name.is_empty() || expression.is_empty() {
                return Err(said("a rule is NAME: EXPRESSION, and neither is empty"));
            }
            let regex = Regex::new(expression).map_err(|error| {
                let words = error.to_string();
                let why = words.lines().last().unwrap_or_default().trim_start_matches("error: ");
                said(&format!("'{expression}' is no regular expression: {why}"))
            })?;
            let category = rules.named(name).ok_or_else(|| said("there are too many names"))?;
            rules.rules.push((category, regex));
        }
        if rules.rules.is_empty() {
            return Err(OwnError("there is no rule in it".to_owned()));
        }
        Ok(rules)
    }

    fn named(&mut self, name: &str) -> Option<Category> {
        if let Some(known) = Category::by_name(name) {
            return Some(known);
        }
        let at = self.names.iter().position(|own| own == name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        (at < NAMES_MAX).then_some(Category::Own(at as u16))
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    /// Puts what the rules say in place of what was found. A rule is held against each frame as
    /// `FILE:LINE FUNCTION`, and against the remark that the program had set.
    pub(super) fn overrule(
        &self,
        snapshot: &Snapshot,
        device: u32,
        lives: &[Life],
        all: &mut [Category],
    ) {
        if self.rules.is_empty() {
            return;
        }
        let trace = snapshot.trace(device).unwrap_or_default();
        let mut by_stack: HashMap<StackId, Option<usize>> = HashMap::new();
        for (life, category) in lives.iter().zip(all) {
            let of_stack = life.stack.and_then(|stack| {
                *by_stack.entry(stack).or_insert_with(|| self.rule_of_stack(snapshot, stack))
            });
            let note = life.begin.map(|begin| snapshot.note(trace[begin].note));
            let remark = note.and_then(|note| note.user_metadata).map(|text| snapshot.text(text));
            let of_remark = remark.and_then(|remark| self.first(|rule| rule.is_match(remark)));
            if let Some(rule) = of_stack.into_iter().chain(of_remark).min() {
                *category = self.rules[rule].0;
            }
        }
    }

    fn rule_of_stack(&self, snapshot: &Snapshot, stack: StackId) -> Option<usize> {
        let frame = |frame: larder_snapshot::Frame| {
            let (file, function) = (snapshot.text(frame.filename), snapshot.text(frame.name));
            format!("{file}:{} {function}", frame.line)
        };
        let frames: Vec<String> = snapshot.stack(stack).map(frame).collect();
        self.first(|rule| frames.iter().any(|frame| rule.is_match(frame)))
    }

    fn first(&self, fits: impl Fn(&Regex) -> bool) -> Option<usize> {
        self.rules.iter().position(|(_, rule)| fits(rule))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ones_own_or_known() {
        let text = "# mine\nembeddings: nn/functional\\.py:\\d+ embedding\n\n\
                    caches: my_cache\nembeddings: wte\n";
        let rules = OwnRules::parse(text).expect("rules");
        assert_eq!(rules.names(), ["embeddings"]);
        let categories: Vec<Category> = rules.rules.iter().map(|rule| rule.0).collect();
        assert_eq!(categories, [Category::Own(0), Category::Caches, Category::Own(0)]);
    }

    #[test]
    fn what_is_no_rule_names_its_line() {
        let why = |text: &str| OwnRules::parse(text).expect_err(text).to_string();
        assert_eq!(
            why("a: b\nembeddings"),
            OwnError(
                "line 2: a rule is NAME: EXPRESSION, with a \
                    space behind the colon"
                    .to_owned()
            )
            .to_string()
        );
        assert!(
            why("a: (").starts_with("line 1: '(' is no regular expression: "),
            "{}",
            why("a: (")
        );
        assert_eq!(why("# nothing\n"), "there is no rule in it");
    }
}
