//! The command `top`.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use console::Term;
use larder_study::live::{Followed, Look, Served, Sums};
use larder_study::report::live::screen;

use crate::{Refusal, print_text};

/// Where looks come from.
enum Source {
    Tape(Box<Followed>),
    Page(Served),
}

impl Source {
    fn open(name: &str) -> Result<Source, Refusal> {
        let path = Path::new(name);
        if let Some(served) = Served::at(name).filter(|_| !path.exists()) {
            return Ok(Source::Page(served));
        }
        let followed = Followed::open(path).map_err(|error| {
            Refusal::Input(format!(
                "{name}: {error}; top takes a tape, or the address of a program's statistics"
            ))
        })?;
        Ok(Source::Tape(Box::new(followed)))
    }

    fn look(&mut self, name: &str) -> Result<Look, Refusal> {
        let said = |error: &dyn std::fmt::Display| Refusal::Input(format!("{name}: {error}"));
        match self {
            Source::Tape(followed) => followed.look().map_err(|error| said(&error)),
            Source::Page(served) => served.look().map_err(|error| {
                Refusal::Input(format!(
                    "{name}: {error}; a program serves its statistics with LARDER_CONF=metrics:PORT"
                ))
            }),
        }
    }
}

/// Shows the memory of a program again and again, in place where there is a terminal.
pub(crate) fn top(name: &str, every: f64, once: bool) -> Result<(), Refusal> {
    let mut source = Source::open(name)?;
    let mut before: Option<(Sums, Instant)> = None;
    let term = Term::stdout();
    loop {
        let look = match (source.look(name), &before) {
            (Ok(look), _) => look,
            // A program that answered and does no more has ended.
            (Err(_), Some(_)) if matches!(source, Source::Page(_)) => {
                return print_text("the program serves no statistics any more\n");
            }
            (Err(refusal), _) => return Err(refusal),
        };
        let now = Instant::now();
        let since = before.as_ref().map(|(sums, at)| (sums, (now - *at).as_secs_f64()));
        let text = screen(name, &look, since);
        if io::stdout().is_terminal() && !once {
            term.clear_screen()?;
        }
        print_text(&text)?;
        if once {
            return Ok(());
        }
        before = Some((look.sums, now));
        thread::sleep(Duration::from_secs_f64(every));
    }
}
