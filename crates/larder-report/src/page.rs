//! The page: the built one, with facts and tables put in.

use std::io::{self, Write};
use std::path::Path;

use larder_snapshot::whole::{self, WriteError};
use larder_study::timeline::{Levels, NEVER, Timeline};
use serde_json::{Value, json};

use crate::arenas::{Arena, arena_of, arenas};
use crate::bands::{Bands, bands};
use crate::facts::facts;
use crate::packed::Table;
use crate::subject::Subject;

/// The built page. What it is built from stands beside it.
const PAGE: &str = include_str!("../page/dist/page.html");
/// Where the title goes.
const TITLE: &str = "{{title}}";
/// Where the facts go, and what the first picture needs.
const FIRST: &str = "<!--{{first}}-->";
/// Where the rest goes, which is read when it is wanted.
const REST: &str = "<!--{{rest}}-->";

/// Writes the page of a subject, or of two side by side, to a file, whole or not at all; `-` is
/// standard output.
pub fn save(subjects: &[Subject], path: &Path) -> Result<(), WriteError> {
    whole::write(path, |file| write(subjects, file))
}

/// Writes the page.
pub fn write(subjects: &[Subject], mut out: &mut dyn Write) -> io::Result<()> {
    let titles: Vec<&str> = subjects.iter().map(|subject| subject.name.as_str()).collect();
    let title = escaped(&format!("{} – memory", titles.join(" and ")));
    let sides: Vec<Side> = subjects
        .iter()
        .zip(["a", "b"])
        .map(|(subject, prefix)| Side::of(subject, prefix))
        .collect::<io::Result<_>>()?;
    let page = PAGE.replace(TITLE, &title);
    let (head, body) = page.split_once(FIRST).ok_or_else(|| unbuilt(FIRST))?;
    let (body, foot) = body.split_once(REST).ok_or_else(|| unbuilt(REST))?;
    out.write_all(head.as_bytes())?;
    let facts: Vec<&Value> = sides.iter().map(|side| &side.facts).collect();
    let facts = json!({ "version": env!("CARGO_PKG_VERSION"), "sides": facts });
    // A script ends at the first mark that looks like its end, whatever stands around it.
    let facts = facts.to_string().replace('<', "\\u003c");
    writeln!(&mut out, "<script type=\"application/json\" id=\"facts\">{facts}</script>")?;
    sides.iter().try_for_each(|side| tables(&side.first, out))?;
    out.write_all(body.as_bytes())?;
    sides.iter().try_for_each(|side| tables(&side.rest, out))?;
    out.write_all(foot.as_bytes())
}

fn unbuilt(mark: &str) -> io::Error {
    io::Error::other(format!("the built page has no {mark}"))
}

fn tables(tables: &[(String, String)], mut out: &mut dyn Write) -> io::Result<()> {
    tables.iter().try_for_each(|(name, table)| {
        writeln!(&mut out, "<script type=\"text/plain\" id=\"{name}\">{table}</script>")
    })
}

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// What stands in the page for one subject.
struct Side {
    facts: Value,
    first: Vec<(String, String)>,
    rest: Vec<(String, String)>,
}

impl Side {
    fn of(subject: &Subject, prefix: &str) -> io::Result<Side> {
        let timeline = &subject.timeline;
        let unit_bytes = unit_bytes(timeline);
        let Bands { levels, pieces } = bands(prefix, timeline, &subject.origins, unit_bytes)?;
        let arenas = arenas(&timeline.stretches);
        let series = series(timeline, unit_bytes)?;
        let stretches = stretches(timeline, &arenas, unit_bytes)?;
        let mut rest = vec![(format!("{prefix}-stretches"), stretches)];
        rest.extend(pieces);
        Ok(Side {
            facts: facts(subject, unit_bytes, &levels, &arenas),
            first: vec![(format!("{prefix}-series"), series)],
            rest,
        })
    }
}

/// What all sizes and addresses are multiples of: 512 bytes as a rule.
fn unit_bytes(timeline: &Timeline) -> u64 {
    let of_blocks = timeline.allocations.iter().flat_map(|one| [one.addr, one.size_bytes]);
    let of_stretches = timeline.stretches.iter().flat_map(|one| [one.addr, one.size_bytes]);
    let all = of_blocks.chain(of_stretches).fold(0, |bits, number| bits | number);
    1 << all.trailing_zeros().min(9)
}

fn series(timeline: &Timeline, unit_bytes: u64) -> io::Result<String> {
    let buckets = &timeline.series.buckets;
    let mut table = Table::default();
    let columns: [fn(&Levels) -> u64; 5] = [
        |levels| levels.allocated,
        |levels| levels.active,
        |levels| levels.reserved,
        |levels| levels.free,
        |levels| levels.largest,
    ];
    for column in columns {
        table.differences(buckets.iter().map(|bucket| column(&bucket.before) / unit_bytes));
    }
    for column in columns {
        table.differences(buckets.iter().map(|bucket| column(&bucket.most) / unit_bytes));
    }
    table.finish()
}

fn stretches(timeline: &Timeline, arenas: &[Arena], unit_bytes: u64) -> io::Result<String> {
    let all = &timeline.stretches;
    let mut table = Table::default();
    table.differences(all.iter().map(|one| u64::from(one.begin)));
    table.column(all.iter().map(|one| match one.end {
        NEVER => 0,
        end => u64::from(end - one.begin) + 1,
    }));
    table.differences(all.iter().map(|one| one.addr / unit_bytes));
    table.column(all.iter().map(|one| one.size_bytes / unit_bytes));
    table.column(all.iter().map(|one| u64::from(one.lane)));
    table.column(all.iter().map(|one| arena_of(arenas, one)));
    table.finish()
}
