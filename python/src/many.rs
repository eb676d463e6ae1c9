//! Many recordings: the ranks of a program, and what grew from one recording to another.

use std::path::PathBuf;

use larder_study::growth::Growth;
use larder_study::ranks::{self, Ranks};
use larder_study::report::{grown, ranked};
use pyo3::prelude::*;

use crate::errors::{Error, FileError};
use crate::number;
use crate::progress::Shown;
use crate::workload::{Room, Workload, question};

/// What there is to say of all ranks in these files and folders, as text and as JSON.
#[pyfunction]
pub(crate) fn explain_ranks(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    policy: Option<&str>,
    settings: Option<&str>,
    room: Room,
    addresses: &str,
    #[pyo3(from_py_with = number::device)] device: u32,
) -> PyResult<(String, String)> {
    let question = question(policy, settings, room, addresses)?;
    let files = ranks::files(&paths).map_err(|error| FileError::new_err(error.to_string()))?;
    let found = py.detach(|| {
        let found = Ranks::of(files, device, &question, ranks::ideas(), &Shown::default());
        let is_any = found.read().next().is_some();
        (is_any, ranked::ranked(&found), ranked::json(&found).to_string())
    });
    match found {
        (true, text, json) => Ok((text, json)),
        (false, text, _) => Err(Error::new_err(text.trim().to_owned())),
    }
}

/// What grew from one recording to another, as text and as JSON.
#[pyfunction]
pub(crate) fn diff(
    py: Python<'_>,
    before: &Workload,
    after: &Workload,
    names: (String, String),
) -> (String, String) {
    let taken = |one: &'_ Workload| one.snapshot.clone();
    let (one, other) = (taken(before), taken(after));
    py.detach(|| {
        let growth = Growth::between(
            (&before.work, one.as_ref().map(|(snapshot, device)| (&**snapshot, *device))),
            (&after.work, other.as_ref().map(|(snapshot, device)| (&**snapshot, *device))),
        );
        let text = grown::grown((&names.0, &names.1), &growth);
        (text, grown::json(&growth).to_string())
    })
}
