//! Answers: why a program ran out of memory, what to set, how its memory went; each as text and as
//! JSON.

use std::time::Duration;

use larder_study::course::{Point, course};
use larder_study::explain as study;
use larder_study::report::answer::Commands;
use larder_study::report::{self as said, explained, explained_json, picture, tuned};
use larder_study::scene::Provenance;
use larder_study::tune::tune;
use pyo3::prelude::*;

use crate::number;
use crate::progress::Shown;
use crate::workload::{Room, Workload, set_up, stopped};

/// One stretch of a program: its first operation, the most that was allocated, active and reserved
/// in it, and whether a request failed.
type Stretch = (usize, u64, u64, u64, bool);

/// Why the failure of this number happened, as text and as JSON; none if there are not so many.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // They are those of the function in Python.
pub(crate) fn explain(
    py: Python<'_>,
    workload: &Workload,
    name: &str,
    policy: Option<&str>,
    settings: Option<&str>,
    room: Room,
    addresses: &str,
    #[pyo3(from_py_with = number::failure)] failure: Option<u64>,
) -> PyResult<Option<(String, String)>> {
    let (setup, chosen) = set_up(&workload.work, policy, settings, room, addresses)?;
    let answered = py.detach(|| {
        let found = study::explain(&workload.work, &setup, failure, &Shown::default())?;
        let taken = workload.snapshot.as_ref().map(|(snapshot, device)| (&**snapshot, *device));
        let provenance = Provenance::new(&workload.work, taken);
        let heading = explained::heading(name, &workload.work, &setup, &chosen);
        Ok(found.map(|found| {
            let commands = Commands::of(name);
            let text = explained::explained(&heading, &found, &provenance, &commands);
            (text, explained_json::explanation(&found, &provenance).to_string())
        }))
    });
    answered.map_err(|error| stopped(name, &error))
}

/// How it fared where nothing failed, as text and as JSON; none where something did.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // They are those of the function in Python.
pub(crate) fn outlook(
    py: Python<'_>,
    workload: &Workload,
    name: &str,
    policy: Option<&str>,
    settings: Option<&str>,
    room: Room,
    addresses: &str,
) -> PyResult<Option<(String, String)>> {
    let (setup, chosen) = set_up(&workload.work, policy, settings, room, addresses)?;
    let answered = py.detach(|| study::outlook(&workload.work, &setup, &Shown::default()));
    let found = answered.map_err(|error| stopped(name, &error))?;
    Ok(found.map(|found| {
        let taken = workload.snapshot.as_ref().map(|(snapshot, device)| (&**snapshot, *device));
        let provenance = Provenance::new(&workload.work, taken);
        let heading = explained::heading(name, &workload.work, &setup, &chosen);
        let text = said::outlook::text(&heading, &found, &provenance, &Commands::of(name));
        (text, said::outlook::json(&found).to_string())
    }))
}

/// The settings with which it holds least, as text and as JSON.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // They are those of the function in Python.
pub(crate) fn tune_settings(
    py: Python<'_>,
    workload: &Workload,
    name: &str,
    policy: Option<&str>,
    room: Room,
    addresses: &str,
    seconds: f64,
) -> PyResult<(String, String)> {
    let (setup, chosen) = set_up(&workload.work, policy, None, room, addresses)?;
    let (policies, limit) =
        ([setup.policy.clone()], Duration::from_secs_f64(seconds.clamp(0.1, 86_400.0)));
    let ran = py.detach(|| tune(&workload.work, &setup, &policies, limit, &Shown::default()));
    let found = ran.map_err(|error| stopped(name, &error))?;
    let text = [
        explained::heading(name, &workload.work, &setup, &chosen),
        tuned::base_line(&found.base),
        tuned::demand(&found, &setup)
            .unwrap_or_else(|| tuned::tuned("the best three", &found, &found.base)),
    ];
    Ok((text.join("\n"), tuned::json(&found, setup.memory_bytes).to_string()))
}

/// How its memory went, in no more than so many stretches, and a picture of it.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // They are those of the function in Python.
pub(crate) fn memory_over_time(
    py: Python<'_>,
    workload: &Workload,
    name: &str,
    policy: Option<&str>,
    settings: Option<&str>,
    room: Room,
    addresses: &str,
    #[pyo3(from_py_with = number::stretches)] stretches: u64,
) -> PyResult<(Vec<Stretch>, String)> {
    let (setup, _) = set_up(&workload.work, policy, settings, room, addresses)?;
    let ran = py.detach(|| course(&workload.work, &setup, stretches as usize));
    let points = ran.map_err(|error| stopped(name, &error))?;
    let svg = picture::svg(name, &points);
    let stretch = |point: Point| {
        let Point { index, allocated_bytes, active_bytes, reserved_bytes, has_failure } = point;
        (index, allocated_bytes, active_bytes, reserved_bytes, has_failure)
    };
    Ok((points.into_iter().map(stretch).collect(), svg))
}

/// Does what a command line of the program `larder` asks for; the exit code.
#[pyfunction]
pub(crate) fn perform(py: Python<'_>, words: Vec<std::ffi::OsString>) -> u8 {
    py.detach(|| larder_cli::perform(words))
}
