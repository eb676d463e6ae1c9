//! The command `query`.

use std::path::Path;

use larder_query::{Answer, Cell, Database, tables, write_parquet};
use larder_snapshot::whole;
use larder_study::category::OwnRules;
use larder_study::file::{Contents, STANDARD};
use larder_study::report::json;
use larder_study::report::table::Table;

use crate::args::Query;
use crate::progress::Bars;
use crate::{Refusal, print, print_text};

/// What the name of a file of Parquet's ends in.
const PARQUET: &str = ".parquet";

/// Answers a SELECT over a recording's tables.
pub(crate) fn query(asked: &Query) -> Result<(), Refusal> {
    let file = asked.file.display();
    if let Some(out) = &asked.output {
        let is_parquet = out.to_string_lossy().ends_with(PARQUET) || out == Path::new(STANDARD);
        if !is_parquet {
            let out = out.display();
            return Err(Refusal::Usage(format!("{out}: a query is written as {PARQUET}")));
        }
    }
    let rules = rules(asked.categories.as_deref())?;
    let snapshot = match Contents::load(&asked.file, &Bars::default())? {
        Contents::Snapshot(snapshot) => snapshot,
        Contents::Script(_) => {
            return Err(Refusal::Input(format!(
                "{file}: query is for a snapshot, and this is a script; `larder snapshot` makes \
                 one of it"
            )));
        }
    };
    let tables = tables(&snapshot, asked.device.unwrap_or(0), &rules)
        .map_err(|error| Refusal::Input(format!("{file}: {error}")))?;
    let database = Database::of(&tables)?;
    let answer = database
        .ask(&asked.select)
        .map_err(|error| Refusal::Usage(format!("the query cannot be answered: {error}")))?;
    match &asked.output {
        Some(out) => write(&answer, out),
        None if asked.json => print(&json::answer("query", answer.json())),
        None => print_text(&text(answer)),
    }
}

/// The rules of a person's own, if there are any.
pub(crate) fn rules(path: Option<&Path>) -> Result<OwnRules, Refusal> {
    let rules = path.map(OwnRules::load).transpose();
    let rules = rules.map_err(|error| Refusal::Usage(format!("--categories: {error}")))?;
    Ok(rules.unwrap_or_default())
}

fn write(answer: &Answer, out: &Path) -> Result<(), Refusal> {
    let mut bytes = Vec::new();
    write_parquet(answer, &mut bytes)
        .map_err(|error| Refusal::Input(format!("{}: {error}", out.display())))?;
    Ok(whole::write(out, |file| file.write_all(&bytes))?)
}

fn text(answer: Answer) -> String {
    let row = |row: Vec<Cell>| row.iter().map(Cell::to_string).collect();
    Table::of(answer.columns, answer.rows.into_iter().map(row).collect()).to_string()
}
