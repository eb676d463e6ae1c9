//! Workloads, and what comes of them on a simulated GPU.

use std::path::PathBuf;
use std::sync::Arc;

use larder_sim::Calls;
use larder_study::OptionError;
use larder_study::card::Card;
use larder_study::compare;
use larder_study::file::{Contents, Snapshot};
use larder_study::fit;
use larder_study::margin;
use larder_study::passes::Pass;
use larder_study::question::{PoseError, Posed, Question};
use larder_study::recording::Recording;
use larder_study::replay::{Replay, ReplayError, Setup};
use larder_study::report::answer::{Commands, answer};
use larder_study::report::{fitted, summary};
use larder_study::settings::Chosen;
use larder_study::sizes::{Sizes, parse_scale};
use larder_study::told::Told;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::conf;
use crate::errors::{Error, FileError, SettingsError, UsageError, of_recording};
use crate::number;
use crate::progress::Shown;

/// Operations to run, and what a recording knows besides.
#[pyclass(module = "larder._native", frozen)]
pub(crate) struct Workload {
    pub(crate) work: larder_study::workload::Workload,
    /// The snapshot that it was made from, and which device's trace of it.
    pub(crate) snapshot: Option<(Arc<Snapshot>, u32)>,
}

#[allow(clippy::needless_pass_by_value)] // As `map_err` passes it.
fn not_an_option(error: OptionError) -> PyErr {
    UsageError::new_err(error.to_string())
}

/// How much memory there is, which card it was recorded on, how much the program may have, and what
/// PyTorch's error said.
pub(crate) type Room = (Option<u64>, Option<String>, Option<u64>, Option<String>);

/// What a workload runs on, and with which settings: the rule is that of the commands.
pub(crate) fn set_up(
    workload: &larder_study::workload::Workload,
    policy: Option<&str>,
    settings: Option<&str>,
    room: Room,
    addresses: &str,
) -> PyResult<(Setup, Chosen)> {
    let question = question(policy, settings, room, addresses)?;
    let posed = question.pose(workload).map_err(|error| Error::new_err(error.to_string()))?;
    Ok((posed.setup, posed.settings))
}

/// What a caller says of a run.
pub(crate) fn question(
    policy: Option<&str>,
    settings: Option<&str>,
    (memory_bytes, card, cap_bytes, error): Room,
    addresses: &str,
) -> PyResult<Question> {
    let read = conf::read_for_replay(settings.unwrap_or_default(), policy)?;
    let is_named = policy.is_some() || settings.and_then(conf::policy_in).is_some();
    let question = Question {
        policy: is_named.then_some(read.policy),
        settings: settings.map(|text| Chosen::given(text, read.config)),
        memory_bytes,
        card: card.map(|card| Card::parse(&card)).transpose().map_err(not_an_option)?,
        cap_bytes,
        told: error.map(|text| text.parse::<Told>()).transpose().map_err(not_an_option)?,
        addresses: addresses.parse().map_err(not_an_option)?,
    };
    question.check().map_err(not_an_option)?;
    Ok(question)
}

/// The smallest memory; what it needs with sizes that are off; and what where requests that were
/// refused may be refused again.
type Memory = (Option<u64>, Option<u64>, Option<u64>);

/// What a search for the smallest memory came to: that memory, the retries there, the smallest
/// memory without any, what was active at the peak, and a summary.
type Found = (Memory, u64, Option<u64>, u64, String);

pub(crate) fn stopped(name: &str, error: &ReplayError) -> PyErr {
    Error::new_err(format!("{name}: {error}"))
}

#[pymethods]
impl Workload {
    /// Reads a file: an op script or a snapshot.
    #[staticmethod]
    fn load(
        py: Python<'_>,
        path: PathBuf,
        #[pyo3(from_py_with = number::device)] device: u32,
    ) -> PyResult<Workload> {
        let contents = py.detach(|| Contents::load(&path, &Shown::default()));
        match contents.map_err(|error| FileError::new_err(error.to_string()))? {
            Contents::Script(ops) => {
                let work = larder_study::workload::Workload { ops, ..Default::default() };
                Ok(Workload { work, snapshot: None })
            }
            Contents::Snapshot(snapshot) => {
                let recording = py.detach(|| Recording::from_snapshot(&snapshot, device));
                let recording = recording.map_err(|error| of_recording(Some(&path), &error))?;
                let snapshot = Some((Arc::from(snapshot), device));
                Ok(Workload { work: recording.into(), snapshot })
            }
        }
    }

    fn __len__(&self) -> usize {
        self.work.ops.len()
    }

    /// The operations, as the lines of a script.
    fn operations(&self) -> Vec<String> {
        self.work.ops.iter().map(ToString::to_string).collect()
    }

    /// The workload with every size so many times as large, and up to so many per cent off, both
    /// as texts.
    fn resized(&self, scale: &str, jitter: Option<&str>) -> PyResult<Workload> {
        let scale = parse_scale(scale).map_err(not_an_option)?;
        let jitter = jitter.map(str::parse).transpose().map_err(not_an_option)?;
        let mut work = self.work.clone();
        work.resize(Sizes { scale, jitter });
        Ok(Workload { work, snapshot: self.snapshot.clone() })
    }

    /// Runs it so many times over.
    #[allow(clippy::too_many_arguments)] // They are those of the function in Python.
    fn replay(
        &self,
        py: Python<'_>,
        name: &str,
        policy: Option<&str>,
        settings: Option<&str>,
        room: Room,
        addresses: &str,
        #[pyo3(from_py_with = number::passes)] passes: u64,
    ) -> PyResult<Outcome> {
        let (setup, settings) = set_up(&self.work, policy, settings, room, addresses)?;
        let run = || Replay::new(&self.work, &setup).run_passes(&self.work.ops, passes, &mut ());
        let ran = py.detach(run);
        let outcome = ran.map_err(|error| stopped(name, &error))?;
        let summary = summary::outcome(name, &self.work, &setup, &settings, &outcome);
        Ok(Outcome {
            run: outcome,
            summary,
            settings: settings.conf,
            policy: setup.policy.name,
            is_recorded: false,
            remark: None,
            device_memory: setup.memory_bytes,
        })
    }

    /// Runs it once for each of the settings, and under those that it was recorded with, if they
    /// are others; with the table that shows them side by side. Without any, those that people
    /// try first.
    fn compare(
        &self,
        py: Python<'_>,
        name: &str,
        policy: Option<&str>,
        settings: Option<Vec<String>>,
        room: Room,
        addresses: &str,
    ) -> PyResult<(Vec<Outcome>, String)> {
        let (setup, _) = set_up(&self.work, policy, Some(""), room, addresses)?;
        // All are read before anything runs, so that a bad one costs nothing.
        let read = |text: String| {
            let read = conf::read_for_replay(&text, None)?;
            if conf::policy_in(&text).is_some() {
                let sentence =
                    format!("settings: '{text}': all runs have one policy, which policy= names");
                return Err(SettingsError::new_err(sentence));
            }
            Ok((text, read.config))
        };
        let is_usual = settings.is_none();
        let settings = match settings {
            Some(settings) => settings.into_iter().map(read).collect::<PyResult<Vec<_>>>()?,
            None => compare::usual_settings(Some(&setup.policy)),
        };
        let policy = Some(&setup.policy);
        let ran = py.detach(|| {
            compare::under(&self.work, &setup, policy, &settings, is_usual, &Shown::default())
        });
        let mut compared = ran.map_err(|error| stopped(name, &error))?;
        let answer = answer(&Commands::of(name), &compared);
        let (setup, rows) = compared.remove(0);
        let table = summary::rows(name, &self.work, &setup, &rows) + &answer;
        let outcomes = rows.into_iter().map(|row| {
            let setup = Setup { config: row.config.clone(), ..setup.clone() };
            let settings = Chosen::given(&row.conf, row.config);
            Outcome {
                summary: summary::outcome(name, &self.work, &setup, &settings, &row.outcome),
                run: row.outcome,
                settings: row.conf,
                policy: setup.policy.name,
                is_recorded: row.is_recorded,
                remark: row.remark,
                device_memory: setup.memory_bytes,
            }
        });
        Ok((outcomes.collect(), table))
    }

    /// Searches the smallest memory on which it runs so many times over, and how often it retries
    /// there; the smallest without retries; what was active at the peak; and a summary.
    #[allow(clippy::too_many_arguments)] // They are those of the function in Python.
    fn fit(
        &self,
        py: Python<'_>,
        name: &str,
        policy: Option<&str>,
        settings: Option<&str>,
        room: Room,
        addresses: &str,
        #[pyo3(from_py_with = number::passes)] passes: u64,
    ) -> PyResult<Found> {
        let question = question(policy, settings, room, addresses)?;
        let unposed = |error: PoseError| Error::new_err(format!("{name}: {error}"));
        let posed = question.pose_fit(&self.work).map_err(unposed)?;
        let Posed { setup, settings } = posed;
        let found = py.detach(|| {
            let fit = fit::fit(&self.work, &setup, passes, &Shown::default())?;
            let margin = margin::margin(&self.work, &setup, &fit, &Shown::default())?;
            Ok((fit, margin))
        });
        let (fit, margin) = found.map_err(|error: ReplayError| stopped(name, &error))?;
        let summary = fitted::fitted(name, &self.work, &setup, &settings, (&fit, &margin));
        let refused_bytes = margin.refused.and_then(|refused| refused.memory_bytes);
        let memory = (fit.memory_bytes, margin.off_bytes, refused_bytes);
        Ok((memory, fit.retries, fit.calm_bytes, fit.peak_active_bytes, summary))
    }
}

/// What came of one run.
#[pyclass(module = "larder._native", frozen)]
pub(crate) struct Outcome {
    run: larder_study::replay::Outcome,
    /// What `larder replay` prints.
    #[pyo3(get)]
    summary: String,
    /// The settings of the run.
    #[pyo3(get)]
    settings: String,
    /// Who decided.
    #[pyo3(get)]
    policy: &'static str,
    /// Whether the settings are those that the program was recorded with.
    #[pyo3(get)]
    is_recorded: bool,
    /// Why the settings could make no difference, if they could not.
    #[pyo3(get)]
    remark: Option<String>,
    /// How much memory the simulated GPU had.
    #[pyo3(get)]
    device_memory: u64,
}

#[pymethods]
impl Outcome {
    /// Every key of `torch.cuda.memory_stats()`.
    fn memory_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = PyDict::new(py);
        for (key, value) in self.run.stats.entries() {
            stats.set_item(key, value)?;
        }
        stats.set_item("max_split_size", self.run.max_split_bytes)?;
        Ok(stats)
    }

    /// How often each call reached the device.
    fn device_calls<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        calls(py, self.run.calls)
    }

    /// What the calls for memory would have cost, and how many there were: in all, and in the last
    /// third of the operations.
    #[getter]
    fn driver(&self) -> [(u64, u64); 2] {
        [self.run.driver, self.run.driver_last_third].map(|spent| (spent.ns, spent.calls))
    }

    /// Of each pass: what was active and what was reserved at the peak so far, how many allocations
    /// of it failed, what its calls for memory would have cost, and how many there were.
    #[getter]
    fn passes(&self) -> Vec<(u64, u64, u64, u64, u64)> {
        let pass = |pass: &Pass| {
            let Pass { peak_active_bytes, peak_reserved_bytes, ooms, driver } = *pass;
            (peak_active_bytes, peak_reserved_bytes, ooms, driver.ns, driver.calls)
        };
        self.run.passes.iter().map(pass).collect()
    }

    /// Bytes of the device in use at the end.
    #[getter]
    fn used_bytes(&self) -> u64 {
        self.run.used_bytes
    }

    /// Allocations that failed.
    #[getter]
    fn ooms(&self) -> u64 {
        self.run.ooms
    }

    /// What the first of them said.
    #[getter]
    fn first_oom(&self) -> Option<&str> {
        self.run.first_oom.as_deref()
    }

    /// Peak reserved over peak active bytes.
    #[getter]
    fn overhead(&self) -> f64 {
        self.run.overhead()
    }

    /// How long the operations took.
    #[getter]
    fn elapsed_seconds(&self) -> f64 {
        self.run.elapsed.as_secs_f64()
    }
}

/// The device's calls, by name.
pub(crate) fn calls(py: Python<'_>, calls: Calls) -> PyResult<Bound<'_, PyDict>> {
    let named = PyDict::new(py);
    named.set_item("malloc", calls.alloc)?;
    named.set_item("free", calls.free)?;
    named.set_item("create", calls.create)?;
    named.set_item("map", calls.map)?;
    named.set_item("unmap", calls.unmap)?;
    Ok(named)
}
