//! The command `explain`.

use larder_study::explain;
use larder_study::replay::Replay;
use larder_study::report::summary::count;
use larder_study::report::visible::visible;
use larder_study::report::{explained, explained_json, outlook};
use larder_study::scene::Provenance;
use larder_study::sizes::Sizes;

use crate::args::Common;
use crate::progress::Bars;
use crate::{Refusal, Task, commands, name, paper, print, print_painted, set_up, stopped, unlike};

/// The exit codes where nothing failed: where the cache had to be given back, and where it had not.
const RETRIED: u8 = 3;
const CALM: u8 = 4;

/// Says why a request failed and what would have helped.
pub(crate) fn explain(
    common: &Common,
    conf: Option<&str>,
    sizes: Sizes,
    number: Option<u64>,
) -> Result<(), Refusal> {
    let Task { workload, snapshot, settings, setup } = set_up(common, conf, sizes)?;
    let failed = |error| stopped(common, &workload, &error);
    let device = common.device.unwrap_or(0);
    let provenance = Provenance::new(&workload, snapshot.as_deref().map(|taken| (taken, device)));
    let found = explain::explain(&workload, &setup, number, &Bars::default()).map_err(failed)?;
    let heading = explained::heading(&name(common), &workload, &setup, &settings);
    let Some(found) = found else {
        let outcome = Replay::new(&workload, &setup).run(&workload.ops, &mut ()).map_err(failed)?;
        if outcome.ooms > 0 {
            let (file, failed) = (common.file.display(), count(outcome.ooms, "request"));
            let number = number.unwrap_or(1);
            let sentence = format!("{file}: only {failed} failed: there is no failure {number}");
            return Err(Refusal::Input(sentence));
        }
        let found = explain::outlook(&workload, &setup, &Bars::default()).map_err(failed)?;
        // Nothing fails, so that there is one.
        let Some(found) = found else { return Ok(()) };
        if common.json {
            print(&outlook::json(&found))?;
        } else {
            let commands = commands(common, sizes);
            let text = outlook::text(&heading, &found, &provenance, &commands);
            print_painted(&paper::painted(&paper::wrapped(&visible(&text))))?;
        }
        return Err(Refusal::Answer(if found.near.is_empty() { CALM } else { RETRIED }));
    };
    if common.json {
        return print(&explained_json::explanation(&found, &provenance));
    }
    let text = explained::explained(&heading, &found, &provenance, &commands(common, sizes));
    let text = text + &unlike(common, &workload)?;
    print_painted(&paper::painted(&paper::wrapped(&visible(&text))))
}
