//! What PyTorch's error tells: how much memory the card had, what was free, and what the program
//! was allowed, as its log has it. Sizes there are rounded to hundredths, so that each is a range.

use std::ops::RangeInclusive;
use std::str::FromStr;

use larder_core::types::{GIB, KIB, MIB};

use crate::option_error::OptionError;
use crate::replay::Setup;
use crate::settings::{names_fraction, recorded_config};
use crate::setup::{Caps, MEMORY_MAX_BYTES};
use crate::workload::Workload;

/// Sizes that go with one that was rounded, in bytes.
type Range = RangeInclusive<u64>;

/// What one or more messages of one device tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// All memory of the card.
    pub total: Range,
    /// What the program had of it, where no cap says so: what was free, and what it held.
    pub had: Option<Range>,
    /// What the program was allowed, where it was under a cap.
    pub allowed: Option<Range>,
}

/// How a message begins, and how the sentence does that has the card's size.
const BEGIN: &str = "Tried to allocate ";
const TOTAL: &str = " has a total capacity of ";

impl FromStr for Told {
    type Err = OptionError;

    /// Reads a log or a message; of several messages what goes with all of them.
    fn from_str(log: &str) -> Result<Told, OptionError> {
        let messages = log.split(BEGIN).skip(1).filter_map(message);
        let mut all: Option<Told> = None;
        for told in messages {
            all = Some(match all {
                None => told,
                Some(before) => before.with(told).ok_or(OptionError::Contradiction)?,
            });
        }
        all.ok_or(OptionError::NoError)
    }
}

/// A message from behind its first words on; none if it is cut off before the card's size.
fn message(text: &str) -> Option<Told> {
    // The text of a log may be broken into lines anywhere.
    let text = text.split_whitespace().take(400).collect::<Vec<_>>().join(" ");
    let (_, rest) = text.split_once(TOTAL)?;
    let total = first_size(rest)?;
    let before = |mark: &str| rest.split_once(mark).and_then(|(before, _)| last_size(before));
    // PyTorch ends it by a semicolon, Larder by a full stop.
    let allowed = before(" allowed;").or_else(|| before(" allowed."));
    let after = |mark: &str| rest.split_once(mark).and_then(|(_, behind)| first_size(behind));
    let free = after(" of which ");
    let held = sum(after("Of the allocated memory "), before(" is reserved by PyTorch"));
    // Whoever has private pools has their free part named beside the two.
    let had = if text.contains("private pools") { None } else { sum(free, held) };
    Some(Told { total, had, allowed })
}

fn sum(one: Option<Range>, other: Option<Range>) -> Option<Range> {
    let (one, other) = (one?, other?);
    Some(one.start() + other.start()..=one.end() + other.end())
}

/// The size at the beginning of a text.
fn first_size(text: &str) -> Option<Range> {
    let mut words = text.split(' ');
    size(words.next()?, words.next()?)
}

/// The size at the end of a text.
fn last_size(text: &str) -> Option<Range> {
    let mut words = text.rsplit(' ');
    let unit = words.next()?;
    size(words.next()?, unit)
}

/// A number in two decimals stands for all that is rounded to it.
fn size(number: &str, unit: &str) -> Option<Range> {
    let unit_bytes = match unit.trim_end_matches(['.', ',', ';', ')']) {
        "bytes" => 1,
        "KiB" => KIB,
        "MiB" => MIB,
        "GiB" => GIB,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    if !number.is_finite() || !(0.0..=MEMORY_MAX_BYTES as f64).contains(&number) {
        return None;
    }
    let off = if unit_bytes == 1 { 0.0 } else { 0.005 };
    let bytes = |number: f64| number * unit_bytes as f64;
    let least = bytes((number - off).max(0.0)).ceil() as u64;
    Some(least..=(bytes(number + off).floor() as u64).max(least))
}

/// What goes with both.
fn common(one: &Range, other: &Range) -> Option<Range> {
    let both = *one.start().max(other.start())..=*one.end().min(other.end());
    (!both.is_empty()).then_some(both)
}

impl Told {
    fn with(self, other: Told) -> Option<Told> {
        let total = common(&self.total, &other.total)?;
        let allowed = match (self.allowed, other.allowed) {
            (Some(one), Some(another)) => Some(common(&one, &another)?),
            (one, another) => one.or(another),
        };
        // What else was on the card may have changed meanwhile.
        let had = self.had.zip(other.had);
        let had = had.map(|(one, another)| {
            *one.start().min(another.start())..=*one.end().max(another.end())
        });
        Some(Told { total, had, allowed })
    }

    /// From how much to how much the program may have been allowed, by this alone.
    fn caps(&self, workload: &Workload) -> Option<Range> {
        if let Some(allowed) = &self.allowed {
            return Some(allowed.clone());
        }
        let config = recorded_config(workload)?.ok()?;
        let fraction = config.memory_fraction;
        let part = |bytes: &u64| (fraction * *bytes as f64) as u64;
        let is_part = names_fraction(&config) && fraction < 1.0;
        is_part.then(|| part(self.total.start())..=part(self.total.end()))
    }

    /// A setup as it is with this known: the range of the cap is narrowed, or the memory is what
    /// the program had. Fails with a sentence where the recording shows something else.
    pub(crate) fn narrow(&self, setup: Setup, workload: &Workload) -> Result<Setup, OptionError> {
        let scaled = |bytes: &u64| workload.sizes.scaled(*bytes);
        let Some(caps) = self.caps(workload) else {
            // What was recorded of a failure is known to the byte.
            let had = self.had.as_ref().filter(|_| workload.recorded_memory().is_none());
            let memory_bytes = had.map_or(setup.memory_bytes, |had| scaled(had.end()));
            return Ok(Setup { memory_bytes, ..setup });
        };
        let recorded = match (setup.caps, setup.cap_bytes) {
            (Some(caps), _) => Some(caps.least_bytes..=caps.most_bytes),
            (None, Some(cap_bytes)) => Some(cap_bytes..=cap_bytes),
            (None, None) => None,
        };
        let told = scaled(caps.start())..=scaled(caps.end());
        let both = match &recorded {
            Some(recorded) => common(recorded, &told).ok_or(OptionError::OtherRun)?,
            None => told,
        };
        let (least_bytes, most_bytes) = (*both.start(), *both.end());
        let is_open = least_bytes < most_bytes;
        let total_bytes = scaled(self.total.end()).max(most_bytes);
        let memory_bytes = match workload.recorded_memory() {
            Some(_) => setup.memory_bytes.clamp(most_bytes, total_bytes),
            None => total_bytes,
        };
        let fraction = setup.fraction.or(Some(most_bytes as f64 / total_bytes as f64));
        Ok(Setup {
            memory_bytes,
            fraction,
            cap_bytes: Some(most_bytes),
            caps: is_open.then_some(Caps { least_bytes, most_bytes }),
            ..setup
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPPED: &str = "Traceback (most recent call last):\n\
        torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.35 GiB. GPU 0 has a total \
        capacity of 139.80 GiB of which 127.62 GiB is free. Process 77 has 12.16 GiB memory in \
        use. 11.23 GiB allowed; Of the allocated memory 9.30 GiB is allocated by PyTorch, and 1.92 \
        GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large \
        try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n";

    #[test]
    fn an_error_tells_the_card_and_the_cap_within_its_rounding() {
        let told: Told = CAPPED.parse().expect("an error");
        assert!(told.total.contains(&150_109_880_320), "{told:?}");
        let allowed = told.allowed.clone().expect("a cap");
        assert!(allowed.contains(&(1123 * GIB / 100)), "{told:?}");
        assert!(allowed.end() - allowed.start() < 11 * MIB, "{told:?}");
        // The same twice tells no more, and broken lines tell as much.
        let twice = format!("{CAPPED}{}", CAPPED.replace(' ', "\n"));
        assert_eq!(twice.parse(), Ok(told));
    }

    #[test]
    fn without_a_cap_it_tells_what_the_program_had() {
        let text = CAPPED.replace("11.23 GiB allowed; ", "");
        let told: Told = text.parse().expect("an error");
        assert_eq!(told.allowed, None);
        let had = told.had.expect("free and held");
        assert!(had.contains(&((12762 + 930 + 192) * GIB / 100)), "{had:?}");
    }

    #[test]
    fn what_tells_nothing_or_two_things_is_refused() {
        assert_eq!("all is well".parse::<Told>(), Err(OptionError::NoError));
        assert_eq!("Tried to allocate 1.35 GiB".parse::<Told>(), Err(OptionError::NoError));
        let other = CAPPED.replace("11.23 GiB allowed", "12.23 GiB allowed");
        let both = format!("{CAPPED}{other}").parse::<Told>();
        assert_eq!(both, Err(OptionError::Contradiction));
    }
}
