//! The page of many ranks: a row a rank, all to one scale. It has no program: what is printed or
//! photographed is all there is.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use larder_core::types::Bytes;
use larder_snapshot::whole::{self, WriteError};
use larder_study::ranks::{Figures, Ranks};
use larder_study::report::ranked;

use crate::page::escaped;

const STYLES: &str = include_str!("../page/ranks.css");

/// Writes the page of many ranks to a file, whole or not at all; `-` is standard output.
pub fn save_ranks(ranks: &Ranks, path: &Path) -> Result<(), WriteError> {
    whole::write(path, |out| out.write_all(page(ranks).map_err(io::Error::other)?.as_bytes()))
}

fn page(ranks: &Ranks) -> Result<String, std::fmt::Error> {
    let title = format!("{} ranks – memory", ranks.read().count());
    let mut text = String::new();
    write!(
        text,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta \
         name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta \
         http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'; img-src data:\">\n<title>{title}</title>\n<link rel=\"icon\" \
         href=\"data:,\">\n<style>{STYLES}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    )?;
    verdict(ranks, &mut text)?;
    rows(ranks, &mut text)?;
    helps(ranks, &mut text)?;
    let errors = ranks.ranks.iter().filter_map(|(_, found)| found.as_ref().err());
    for error in errors {
        writeln!(text, "<p>not replayed: {}</p>", escaped(error))?;
    }
    let version = env!("CARGO_PKG_VERSION");
    writeln!(
        text,
        "<footer class=\"legend\">larder {version} · everything on this page is in this one file\
         </footer>\n</body>\n</html>"
    )?;
    Ok(text)
}

/// What is wrong, who differs, and what to set, before anything else.
fn verdict(ranks: &Ranks, text: &mut String) -> std::fmt::Result {
    let fails = ranks.read().any(|(_, _, figures)| figures.as_it_is.ooms > 0);
    let kind = if fails { " fails" } else { "" };
    writeln!(text, "<section class=\"box{kind}\" aria-label=\"verdict\">")?;
    writeln!(text, "<p><b>{}</b></p>", escaped(&ranked::verdict(ranks)))?;
    for odd in ranks.odd.iter().take(8) {
        writeln!(text, "<p>{}</p>", escaped(&ranked::odd_in_words(ranks, odd)))?;
    }
    if let Some(best) = ranks.best() {
        let (runs, most) = ranks.with(best);
        let all = ranks.read().count();
        let line = escaped(&ranked::line(&ranks.ideas[best]));
        writeln!(
            text,
            "<p>Started with <code>{line}</code> {runs} of {all} run, and none holds more than \
             {}.</p>",
            Bytes(most)
        )?;
    }
    text.push_str("</section>\n");
    Ok(())
}

fn rows(ranks: &Ranks, text: &mut String) -> std::fmt::Result {
    let scale = |figures: &Figures| {
        let trial = figures.as_it_is;
        trial.peak_reserved_bytes.max(trial.peak_active_bytes)
    };
    let most = ranks.read().map(|(_, _, figures)| scale(figures)).max().unwrap_or(1).max(1);
    text.push_str(
        "<h2>Every rank, to one scale</h2>\n<p class=\"legend\"><span><i class=\"used\"></i>in \
         use at the peak</span><span><i class=\"held\"></i>held besides, at most</span><span><i \
         class=\"limit\"></i>what it may have, where that is on the scale</span><span>coloured \
         names differ from the rest of their stage</span></p>\n<div class=\"scroll\"><table>\n\
         <tr><th>rank</th><th></th><th>in use</th><th>held</th><th class=\"spare\">retries</th>\
         <th>fails</th></tr>\n",
    );
    for (number, stage) in ranks.stages.iter().enumerate() {
        if ranks.stages.len() > 1 {
            writeln!(
                text,
                "<tr class=\"stage\"><th colspan=\"6\">stage {} · {} of one shape</th></tr>",
                number + 1,
                stage.members.len()
            )?;
        }
        for &at in &stage.members {
            let (rank, found) = &ranks.ranks[at];
            if let Ok(figures) = found {
                let is_odd = ranks.odd.iter().any(|odd| odd.at == at);
                row(&rank.name, figures, is_odd, most, text)?;
            }
        }
    }
    text.push_str("</table></div>\n");
    Ok(())
}

fn row(
    name: &str,
    figures: &Figures,
    is_odd: bool,
    most: u64,
    text: &mut String,
) -> std::fmt::Result {
    let trial = figures.as_it_is;
    let part = |bytes: u64| bytes as f64 / most as f64 * 100.0;
    let kinds = [(is_odd, "odd"), (trial.ooms > 0, "fails")];
    let kinds: Vec<&str> = kinds.iter().filter(|(is, _)| *is).map(|(_, kind)| *kind).collect();
    write!(
        text,
        "<tr class=\"{}\"><td>{}</td><td class=\"bar\"><div><span class=\"held\" \
         style=\"width:{:.2}%\"></span><span class=\"used\" style=\"width:{:.2}%\"></span>",
        kinds.join(" "),
        escaped(name),
        part(trial.peak_reserved_bytes),
        part(trial.peak_active_bytes)
    )?;
    if figures.allowed_bytes <= most {
        let left = part(figures.allowed_bytes);
        write!(text, "<span class=\"limit\" style=\"left:{left:.2}%\"></span>")?;
    }
    writeln!(
        text,
        "</div></td><td>{}</td><td>{}</td><td class=\"spare\">{}</td><td class=\"count\">{}</td>\
         </tr>",
        Bytes(trial.peak_active_bytes),
        Bytes(trial.peak_reserved_bytes),
        trial.retries,
        trial.ooms
    )
}

fn helps(ranks: &Ranks, text: &mut String) -> std::fmt::Result {
    let all = ranks.read().count();
    text.push_str(
        "<h2>What would help all</h2>\n<div class=\"scroll\"><table>\n<tr><th>with</th>\
         <th>ranks that run</th><th>held at most</th><th>to set</th></tr>\n",
    );
    let running = ranks.read().filter(|(_, _, figures)| figures.as_it_is.ooms == 0).count();
    let held = ranks.read().map(|(_, _, figures)| figures.as_it_is.peak_reserved_bytes).max();
    writeln!(
        text,
        "<tr><td>as it is</td><td>{running} of {all}</td><td>{}</td><td></td></tr>",
        Bytes(held.unwrap_or(0))
    )?;
    for (index, idea) in ranks.ideas.iter().enumerate() {
        let (runs, most) = ranks.with(index);
        writeln!(
            text,
            "<tr><td>{}</td><td>{runs} of {all}</td><td>{}</td><td class=\"words\"><code>{}</code>\
             </td></tr>",
            escaped(&idea.words),
            Bytes(most),
            escaped(&ranked::line(idea))
        )?;
    }
    text.push_str("</table></div>\n");
    Ok(())
}
