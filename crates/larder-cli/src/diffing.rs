//! The command `diff`.

use std::path::Path;

use larder_study::file::STANDARD;
use larder_study::growth::{Growth, Limit};
use larder_study::report::grown;
use larder_study::report::visible::visible_name;
use larder_study::workload::Workload;

use crate::progress::Bars;
use crate::{Refusal, no_operation, print, print_text};

/// The exit code where it grew by more than it may.
const GREW: u8 = 5;

/// Says what grew from one recording to another.
pub(crate) fn diff(
    (before, after): (&Path, &Path),
    device: Option<u32>,
    limit: Option<Limit>,
    is_json: bool,
) -> Result<(), Refusal> {
    let standard = Path::new(STANDARD);
    if before == standard && after == standard {
        return Err(Refusal::Usage("standard input can be read once only".to_owned()));
    }
    let device = device.unwrap_or(0);
    let load = |file: &Path| {
        let (workload, snapshot) = Workload::load_whole(file, device, &Bars::default())?;
        if workload.ops.is_empty() {
            return Err(no_operation(file));
        }
        Ok::<_, Refusal>((workload, snapshot))
    };
    let (one, other) = (load(before)?, load(after)?);
    let growth = Growth::between(
        (&one.0, one.1.as_deref().map(|taken| (taken, device))),
        (&other.0, other.1.as_deref().map(|taken| (taken, device))),
    );
    if is_json {
        print(&grown::json(&growth))?;
    } else {
        let name = |file: &Path| {
            let name = file.file_name().unwrap_or(file.as_os_str());
            visible_name(&name.to_string_lossy())
        };
        print_text(&grown::grown((&name(before), &name(after)), &growth))?;
    }
    match limit {
        Some(limit) if growth.is_beyond(limit) => Err(Refusal::Answer(GREW)),
        _ => Ok(()),
    }
}
