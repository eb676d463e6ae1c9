//! The command `larder report`: a page to look at.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use larder_report::{Question, Subject};
use larder_study::file::STANDARD;
use larder_study::question;
use larder_study::ranks::ideas;
use larder_study::settings::Chosen;

use crate::Refusal;
use crate::args::Report;
use crate::progress::Bars;
use crate::{ranking, read_conf};

/// What shows a file to a person, by its kind.
const SHOWER: &str = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };

pub(crate) fn report(asked: &Report) -> Result<(), Refusal> {
    let standard = Path::new(STANDARD);
    if asked.output == standard && asked.open {
        return Err(Refusal::Usage("--open: a page on standard output is not opened".to_owned()));
    }
    let files: Vec<PathBuf> = std::iter::once(&asked.file).chain(&asked.others).cloned().collect();
    if files.iter().filter(|file| *file == standard).count() > 1 {
        return Err(Refusal::Usage("standard input can be read once only".to_owned()));
    }
    let given = asked.conf.as_deref();
    let settings = given.map(|conf| Ok::<_, Refusal>(Chosen::given(conf, read_conf(conf)?)));
    let run = question::Question {
        policy: asked.policy.clone(),
        settings: settings.transpose()?,
        ..asked.room.question()
    };
    run.check().map_err(|error| Refusal::Usage(error.to_string()))?;
    let question = Question { run, device: asked.device, compares: !asked.no_compare };
    if files.len() > 2 || files.iter().any(|file| file.is_dir()) {
        let found = ranking::read(&files, question.device, &question.run, ideas())?;
        larder_report::save_ranks(&found, &asked.output)?;
        return finish(asked);
    }
    let subjects = files.iter().map(|file| Subject::of(file, &question, &Bars::default()));
    let subjects = subjects.collect::<Result<Vec<_>, _>>()?;
    larder_report::save(&subjects, &asked.output)?;
    finish(asked)
}

/// Names the page, and shows it where that is asked for.
fn finish(asked: &Report) -> Result<(), Refusal> {
    let standard = Path::new(STANDARD);
    if asked.output != standard && io::stdout().is_terminal() {
        println!("{}", asked.output.display());
    }
    if asked.open { open(&asked.output) } else { Ok(()) }
}

/// Shows the page. The program that does may stay as long as the browser, so nobody waits for it.
fn open(page: &Path) -> Result<(), Refusal> {
    let page = std::path::absolute(page)?;
    let mut shower = Command::new(SHOWER);
    shower.arg(&page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    shower.spawn().map(drop).map_err(|error| {
        let page = page.display();
        Refusal::Input(format!("--open: {SHOWER}: {error}; the page is there: {page}"))
    })
}
