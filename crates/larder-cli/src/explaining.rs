//! The command `explain`.

use larder_study::explain;
use larder_study::replay::Replay;
use larder_study::report::summary::count;
use larder_study::report::{explained, explained_json};
use larder_study::scene::Provenance;
use larder_study::sizes::Sizes;

use crate::args::Common;
use crate::progress::Bars;
use crate::{Refusal, Task, commands, name, print, print_text, set_up, stopped, unlike};

/// Says why a request failed and what would have helped.
pub(crate) fn explain(
    common: &Common,
    conf: Option<&str>,
    sizes: Sizes,
    number: u64,
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
            let sentence = format!("{file}: only {failed} failed: there is no failure {number}");
            return Err(Refusal::Input(sentence));
        }
        let stats = &outcome.stats;
        let peaks =
            [&stats.reserved_bytes, &stats.active_bytes].map(|bytes| bytes.all.peak.max(0) as u64);
        if common.json {
            return print(&"null");
        }
        return print_text(&explained::nothing_failed(&heading, peaks));
    };
    if common.json {
        return print(&explained_json::explanation(&found, &provenance));
    }
    let text = explained::explained(&heading, &found, &provenance, &commands(common, sizes));
    print_text(&(text + &unlike(common, &workload)?))
}
