//! The order of the layers inside `larder-core`: a module imports only from earlier ones.

use super::Finding;
use super::source::paths;
use super::tree::Tree;

const SOURCE: &str = "crates/larder-core/src";

/// The layers, the lowest first, and the modules of each.
const LAYERS: [&[&str]; 5] = [
    &["types", "nearest", "torch_version"],
    &["config", "policy", "keeper", "device", "source", "sequence", "out_of_memory", "error"],
    &["record"],
    &["heap"],
    &["allocator"],
];

/// Who may name a module of its own layer all the same.
const ALSO: [(&str, &[&str]); 4] = [
    // A device names who keeps contents of its memory best.
    ("device", &["keeper"]),
    // A source of segments fails as a device does.
    ("source", &["device"]),
    // The numbers of a request that failed include what the device says of processes.
    ("out_of_memory", &["device"]),
    // An error carries the errors of the settings and of the device, and how ranks parted.
    ("error", &["config", "keeper", "device", "source", "sequence", "out_of_memory"]),
];

/// The state machine plans and commits; only the shell above it calls the device.
const WITHOUT_DEVICE: [&str; 2] = ["record", "heap"];
const DEVICE: [&str; 2] = ["device", "source"];

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

/// What is wrong with naming `target` in `module`, or nothing.
fn objection(module: &str, target: &str) -> Option<String> {
    if target == module {
        return None;
    }
    let Some(other) = layer(target) else {
        return Some(format!(
            "`{target}` is no layer of the core: name it by the module that defines it, \
             or give a new module its place in xtask/src/tidy/layers.rs"
        ));
    };
    if WITHOUT_DEVICE.contains(&module) && DEVICE.contains(&target) {
        return Some(format!(
            "`{module}` never names `{target}`: take what is needed as an argument or a plan, \
             and let `allocator` talk to the device"
        ));
    }
    let also = ALSO.iter().any(|(who, may)| *who == module && may.contains(&target));
    if also || layer(module).is_some_and(|own| other < own) {
        return None;
    }
    Some(format!(
        "`{module}` may not import `{target}`, which is not an earlier layer: \
         move the item down or the caller up"
    ))
}

/// Every path from the crate's root that points the wrong way.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    // The root names every module; that is what it is for.
    let sources = tree.sources.iter().filter(|source| source.folder == SOURCE);
    for source in sources {
        let Some(own) = source.module.first() else { continue };
        if layer(own).is_none() {
            let message = format!(
                "module `{own}` is in no layer: give it its place in xtask/src/tidy/layers.rs"
            );
            findings.push(Finding::new(&source.path, 1, message));
            continue;
        }
        for (line, path) in paths(&source.tokens, &source.module, |_| false) {
            let target = path.first().and_then(|target| objection(own, target));
            findings.extend(target.map(|message| Finding::new(&source.path, line, message)));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(inside: &str, text: &str) -> Vec<usize> {
        let path = format!("{SOURCE}/{inside}");
        check(&Tree::with(&[(&path, text)])).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn earlier_layers_and_the_own_module_pass() {
        assert!(
            lines("heap/pool.rs", "use crate::{types::Addr, record::Record, heap::x};").is_empty()
        );
        assert!(lines("lib.rs", "pub use crate::allocator::Allocator;").is_empty());
        assert!(lines("source/mod.rs", "use crate::device::DeviceError;").is_empty());
    }

    #[test]
    fn later_layers_the_device_and_what_hides_the_module_fail() {
        assert_eq!(lines("types.rs", "\nuse super::config::Config;\n"), [2]);
        assert_eq!(lines("heap/pool.rs", "fn f() -> u8 {\n crate::device::NONE\n}"), [2]);
        assert_eq!(lines("config/mod.rs", "use crate::device::Device;"), [1]);
        assert_eq!(lines("types.rs", "mod tests {\n use super::super::heap::Heap;\n}"), [2]);
        assert_eq!(lines("heap/mod.rs", "use crate::Error;\nuse crate::*;"), [1, 2]);
        assert_eq!(lines("extra.rs", ""), [1]);
    }
}
