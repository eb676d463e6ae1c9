//! Many recordings at once: the ranks of a program.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use larder_study::file::STANDARD;
use larder_study::fit::fit;
use larder_study::question::Question;
use larder_study::ranks::{self, Idea, Ranks};
use larder_study::report::ranked;
use larder_study::sizes::Sizes;
use larder_study::watch::Unwatched;
use larder_study::workload::Workload;

use crate::args::Common;
use crate::progress::Bars;
use crate::{Refusal, chosen, print, print_text};

/// Whether several recordings were named.
pub(crate) fn is_many(common: &Common) -> bool {
    ranks::is_many(&common.files())
}

/// Refuses several recordings where a command takes one.
pub(crate) fn refuse_many(common: &Common) -> Result<(), Refusal> {
    if !is_many(common) {
        return Ok(());
    }
    Err(Refusal::Usage(
        "this command takes one recording; explain, show, fit, compare and report take many"
            .to_owned(),
    ))
}

/// What is said of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Explain,
    Show,
    Fit,
    Compare,
}

/// Reads and replays all ranks.
pub(crate) fn read(
    paths: &[PathBuf],
    device: Option<u32>,
    question: &Question,
    ideas: Vec<Idea>,
) -> Result<Ranks, Refusal> {
    if paths.iter().any(|path| path == Path::new(STANDARD)) {
        let sentence = "standard input has one recording, and many were named";
        return Err(Refusal::Usage(sentence.to_owned()));
    }
    let files = ranks::files(paths)?;
    let found = Ranks::of(files, device.unwrap_or(0), question, ideas, &Bars::default());
    if found.read().next().is_none() {
        return Err(Refusal::Input(ranked::ranked(&found).trim().to_owned()));
    }
    Ok(found)
}

/// Answers for all ranks.
pub(crate) fn many(
    common: &Common,
    conf: Option<&str>,
    sizes: Sizes,
    asked: Asked,
    ideas: Vec<Idea>,
) -> Result<(), Refusal> {
    if !sizes.is_same() {
        let sentence = "--scale and --jitter are for one recording, and many were named";
        return Err(Refusal::Usage(sentence.to_owned()));
    }
    let question = chosen(common, conf)?;
    let found = read(&common.files(), common.device, &question, ideas)?;
    let needed = match asked {
        Asked::Fit => fits(&found, common, &question)?,
        _ => Vec::new(),
    };
    if common.json {
        let mut value = ranked::json(&found);
        if asked == Asked::Fit {
            let most = needed.iter().map(|&(_, bytes)| bytes).collect::<Option<Vec<u64>>>();
            value["fit_bytes"] = most.and_then(|all| all.into_iter().max()).into();
        }
        return print(&value);
    }
    print_text(&match asked {
        Asked::Explain => ranked::ranked(&found),
        Asked::Show => ranked::rows(&found),
        Asked::Fit => ranked::fitted(&found, &needed),
        Asked::Compare => ranked::compared(&found),
    })
}

/// The smallest memory of the ranks that may need most: whoever never held as much as another one
/// needs, and was not short, needs less.
fn fits(
    found: &Ranks,
    common: &Common,
    question: &Question,
) -> Result<Vec<(usize, Option<u64>)>, Refusal> {
    let device = common.device.unwrap_or(0);
    let mut order: Vec<usize> = found.read().map(|(at, ..)| at).collect();
    let held = |at: usize| match &found.ranks[at].1 {
        Ok(figures) if figures.as_it_is.ooms == 0 && figures.as_it_is.retries == 0 => {
            figures.as_it_is.peak_reserved_bytes
        }
        _ => u64::MAX,
    };
    order.sort_by_key(|&at| std::cmp::Reverse(held(at)));
    let (mut all, mut most, mut seen) = (Vec::new(), 0, HashSet::new());
    for at in order {
        if held(at) <= most || !seen.insert(at) {
            continue;
        }
        let file = &found.ranks[at].0.file;
        let named = |what: String| Refusal::Input(format!("{}: {what}", file.display()));
        let workload = Workload::load(file, device, &Unwatched)?;
        let posed = question.pose_fit(&workload).map_err(|error| named(error.to_string()))?;
        let fit = fit(&workload, &posed.setup, 1, &Bars::default())
            .map_err(|error| named(error.to_string()))?;
        most = most.max(fit.memory_bytes.unwrap_or(0));
        all.push((at, fit.memory_bytes));
    }
    Ok(all)
}
