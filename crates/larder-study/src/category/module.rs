//! Modules: which part of a model a call stack stands in.

use larder_snapshot::{Snapshot, StackId};

/// The file and function in which a module calls another.
const MODULE: &str = "/torch/nn/modules/module.py";
const CALL: &str = "_call_impl";
/// The files of PyTorch's own modules, which are leaves of a model.
const LEAVES: &str = "/torch/nn/modules/";

/// The modules that call one another on a stack, the outermost first: each as the file of its
/// `forward` and the line that calls the next one, and the innermost as its file alone. Empty
/// outside of a model.
pub fn module_stack(snapshot: &Snapshot, stack: StackId) -> Vec<String> {
    let frames: Vec<(&str, &str, u32)> = snapshot
        .stack(stack)
        .map(|frame| (snapshot.text(frame.filename), snapshot.text(frame.name), frame.line))
        .collect();
    let mut modules = Vec::new();
    // The frame inside of each call is the module's own.
    for pair in frames.windows(2).rev() {
        let [(file, _, line), (caller, function, _)] = *pair else { continue };
        let name = function.rsplit('.').next().unwrap_or(function);
        if !caller.ends_with(MODULE) || name != CALL || file.ends_with(MODULE) {
            continue;
        }
        let file_name = file.rsplit('/').next().unwrap_or(file);
        let stem = file_name.strip_suffix(".py").unwrap_or(file_name);
        modules.push((stem, line, file.contains(LEAVES)));
    }
    let last = modules.len().saturating_sub(1);
    let words = modules.iter().enumerate().map(|(at, &(stem, line, is_leaf))| {
        if is_leaf && at == last { stem.to_owned() } else { format!("{stem}:{line}") }
    });
    words.collect()
}

/// The same as one text, or none outside of a model.
pub fn module_of(snapshot: &Snapshot, stack: StackId) -> Option<String> {
    let modules = module_stack(snapshot, stack);
    (!modules.is_empty()).then(|| modules.join(" > "))
}
