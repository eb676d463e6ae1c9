//! The Python stack of a call, as the context of an event.

use std::sync::Arc;

use larder_core::record::context::{Context, ContextHook, Frame, Stack};
use pyo3::prelude::*;

/// A stack deeper than this is cut off at its outer end.
const FRAMES_MAX: usize = 128;

/// Gathers the caller's Python stack, innermost frame first, without the package's own frames.
pub(crate) fn hook() -> ContextHook {
    Arc::new(|| {
        let frames = Python::attach(|py| frames(py).ok())?;
        Some(Arc::new(Stack(frames)) as Arc<dyn Context>)
    })
}

fn frames(py: Python<'_>) -> PyResult<Vec<Frame>> {
    let mut frames = Vec::new();
    let mut frame = py.import("sys")?.call_method0("_getframe")?;
    while !frame.is_none() && frames.len() < FRAMES_MAX {
        if !is_ours(&frame)? {
            let code = frame.getattr("f_code")?;
            let line: Option<u32> = frame.getattr("f_lineno")?.extract()?;
            frames.push(Frame {
                name: code.getattr("co_name")?.extract()?,
                filename: code.getattr("co_filename")?.extract()?,
                line: line.unwrap_or(0),
            });
        }
        frame = frame.getattr("f_back")?;
    }
    Ok(frames)
}

fn is_ours(frame: &Bound<'_, PyAny>) -> PyResult<bool> {
    let module = frame.getattr("f_globals")?.call_method1("get", ("__name__", ""))?;
    let module: String = module.extract().unwrap_or_default();
    Ok(module == "larder" || module.starts_with("larder."))
}
