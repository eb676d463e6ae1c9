//! The commands `completions` and `man`: the command line, as shells and `man` read it.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;

use crate::Refusal;
use crate::args::Cli;

/// Prints what a shell reads to complete commands and options.
pub(crate) fn completions(shell: Shell) -> Result<(), Refusal> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "larder", &mut script);
    write(&script)
}

/// Prints the page of the program, or of one of its commands.
pub(crate) fn man(name: Option<&str>) -> Result<(), Refusal> {
    let mut whole = Cli::command();
    whole.build();
    let page = match name {
        None => whole,
        Some(name) => match whole.find_subcommand(name) {
            Some(found) => found.clone(),
            None => return Err(Refusal::Usage(format!("there is no command '{name}'"))),
        },
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text)?;
    write(&text)
}

/// A reader that has seen enough is no failure.
fn write(text: &[u8]) -> Result<(), Refusal> {
    match io::stdout().write_all(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
