//! The command `show`.

use std::io::{self, IsTerminal};

use console::Style;
use larder_study::course::course;
use larder_study::file::Contents;
use larder_study::report::beside::beside;
use larder_study::report::shown::{Ink, shown};
use larder_study::report::visible::visible;
use larder_study::report::{explained, explained_json};
use larder_study::scene::{Provenance, Scene};
use larder_study::sizes::Sizes;

use crate::args::{Common, Moment};
use crate::progress::Bars;
use crate::{Refusal, Task, name, print, print_painted, set_up, stopped};

/// How wide the picture over time is.
const STRETCHES: usize = 64;

/// Shows the memory of a program at a moment.
pub(crate) fn show(
    common: &Common,
    conf: Option<&str>,
    sizes: Sizes,
    at: Option<Moment>,
) -> Result<(), Refusal> {
    let task = match set_up(common, conf, sizes) {
        Ok(task) => task,
        // A snapshot with no history has its segments all the same.
        Err(refusal) => return show_taken(common, conf, at).unwrap_or(Err(refusal)),
    };
    let Task { workload, snapshot, settings, setup } = task;
    let failed = |error| stopped(common, &workload, &error);
    if let Some(Moment::Operation(number)) = at
        && number > workload.ops.len()
    {
        let (file, count) = (common.file.display(), workload.ops.len());
        let sentence = format!("{file}: it has {count} operations, and no operation {number}");
        return Err(Refusal::Input(sentence));
    }
    let scene_at = |at: Moment| match at {
        Moment::Peak => Scene::of_peak(&workload, &setup).map(Some),
        Moment::End => Scene::behind(&workload, &setup, usize::MAX).map(Some),
        Moment::Failure => {
            Scene::of_failure(&workload, &setup, 1).map(|found| found.map(|(scene, _)| scene))
        }
        Moment::Operation(number) => Scene::behind(&workload, &setup, number - 1).map(Some),
    };
    let (at, scene) = match at {
        Some(at) => (at, scene_at(at).map_err(failed)?),
        // What failed is what a person who looks wants to see.
        None => match scene_at(Moment::Failure).map_err(failed)? {
            Some(scene) => (Moment::Failure, Some(scene)),
            None => (Moment::Peak, scene_at(Moment::Peak).map_err(failed)?),
        },
    };
    let Some(scene) = scene else {
        let file = common.file.display();
        return Err(Refusal::Input(format!(
            "{file}: nothing failed; --at peak shows when most was in use"
        )));
    };
    let device = common.device.unwrap_or(0);
    let provenance = Provenance::new(&workload, snapshot.as_deref().map(|taken| (taken, device)));
    if common.json {
        return print(&explained_json::scene(&scene, &provenance));
    }
    let points = course(&workload, &setup, STRETCHES).map_err(failed)?;
    let what = match at {
        Moment::Peak => "most in use",
        Moment::End => "the end",
        Moment::Failure => "the first failure",
        Moment::Operation(_) => "as asked",
    };
    let moment = format!("At operation {} of {} ({what})", scene.index + 1, workload.ops.len());
    let heading = explained::heading(&name(common), &workload, &setup, &settings);
    let text = shown(&moment, &scene, &points, &provenance, &painted);
    let beside = snapshot.as_deref().map_or_else(String::new, |taken| beside(taken, device));
    let gap = if beside.is_empty() { "" } else { "\n" };
    let (heading, beside) = (visible(&heading), visible(&beside));
    print_painted(&format!("{heading}\n{text}{gap}{beside}"))
}

/// Shows a snapshot that has segments and no history. None if it is nothing of that kind.
fn show_taken(
    common: &Common,
    conf: Option<&str>,
    at: Option<Moment>,
) -> Option<Result<(), Refusal>> {
    let is_plain = conf.is_none() && matches!(at, None | Some(Moment::End));
    let Ok(Contents::Snapshot(snapshot)) = Contents::load(&common.file, &Bars::default()) else {
        return None;
    };
    let device = common.device.unwrap_or(0);
    let has_trace = snapshot.trace(device).is_some_and(|trace| !trace.is_empty());
    if has_trace || !is_plain || !snapshot.segments.iter().any(|segment| segment.device == device) {
        return None;
    }
    let (scene, workload) = Scene::of_snapshot(&snapshot, device);
    let provenance = Provenance::new(&workload, Some((&snapshot, device)));
    if common.json {
        return Some(print(&explained_json::scene(&scene, &provenance)));
    }
    let text = shown("When it was taken", &scene, &[], &provenance, &painted);
    Some(print_painted(&format!("{}: a snapshot with no history\n\n{text}", name(common))))
}

/// Colours, where there is a terminal that has them.
fn painted(ink: Ink, text: &str) -> String {
    if !io::stdout().is_terminal() || !console::colors_enabled() {
        return text.to_owned();
    }
    let style = match ink {
        Ink::Heading => Style::new().bold(),
        Ink::Live => Style::new().blue(),
        Ink::Waiting => Style::new().yellow(),
        Ink::Free => Style::new().green(),
        Ink::Held => Style::new().dim(),
        Ink::Failure => Style::new().red().bold(),
    };
    style.apply_to(text).to_string()
}
