//! What crosses the border by its layout or its number, compared with `larder.h` by a C compiler.

use std::fs;
use std::mem::{align_of, offset_of, size_of};
use std::path::PathBuf;
use std::process::Command;

use larder_core::config::DIVISION_CLASSES;
use larder_core::record::event::{Action, Level};

use crate::border::{PoolName, Status};
use crate::configure::{SettingValues, UNLIMITED};
use crate::context::ContextFunctions;
use crate::history::{Event, Options};
use crate::memory::BlockInfo;
use crate::out_of_memory::OutOfMemoryReport;
use crate::pinned::{PinnedCalls, PinnedKeeping, TimedCalls, pinning};
use crate::pools::{Filter, filter_kind};
use crate::share::Expandable;
use crate::sleep::{SleepStats, Slept, keep};
use crate::snapshot::{Annotation, Block, Segment, block_state};
use crate::sources::{Source, SourceCounts, source_property};
use crate::stats::{Counter, Counters, Stats};
use crate::symmetric::{Position, SEAL_BYTES};

/// The size of a struct and of each of its fields, and where each field is. A field that is not
/// named here is found by the size.
macro_rules! same {
    ($checks:ident, $name:literal, $type:ident { $($field:ident),* $(,)? }) => {
        // A pattern with every field, so that none is left out.
        let _ = |value: $type| { let $type { $($field: _),* } = value; };
        $checks.push((format!("sizeof({})", $name), size_of::<$type>() as u64));
        $checks.push((format!("_Alignof({})", $name), align_of::<$type>() as u64));
        $({
            let field = stringify!($field);
            let offset = offset_of!($type, $field) as u64;
            $checks.push((format!("offsetof({}, {field})", $name), offset));
            let size = size_of_field(|value: &$type| &raw const value.$field);
            $checks.push((format!("sizeof((({} *)0)->{field})", $name), size as u64));
        })*
    };
}

fn size_of_field<T, F>(_: impl Fn(&T) -> *const F) -> usize {
    size_of::<F>()
}

type Checks = Vec<(String, u64)>;

fn structs() -> Checks {
    let mut checks = Checks::new();
    about_memory(&mut checks);
    about_statistics(&mut checks);
    about_hooks(&mut checks);
    about_snapshots(&mut checks);
    checks
}

fn about_memory(checks: &mut Checks) {
    same!(checks, "larder_pool_id", PoolName { a, b });
    same!(
        checks,
        "larder_out_of_memory",
        OutOfMemoryReport {
            device,
            rejected,
            has_cap,
            requested_bytes,
            rounded_bytes,
            tried_bytes,
            free_bytes,
            total_bytes,
            cap_bytes,
            allocated_bytes,
            reserved_bytes,
            private_free_bytes,
        }
    );
    same!(checks, "larder_slept", Slept { asleep_bytes, kept_bytes, plain_bytes });
    same!(
        checks,
        "larder_sleep_stats",
        SleepStats { asleep_bytes, used_bytes, kept_bytes, spare_bytes, generation }
    );
    same!(checks, "larder_block_info", BlockInfo { device, size, stream });
    same!(
        checks,
        "larder_settings",
        SettingValues {
            large_segment_bytes,
            max_split_bytes,
            max_non_split_rounding_bytes,
            garbage_collection_threshold,
            roundup_divisions,
            expandable_segments,
            release_lock_on_device_alloc,
            capture_reuse,
            reject_above_fraction,
            plain_captures,
            memory_fraction,
        }
    );
}

fn about_statistics(checks: &mut Checks) {
    same!(checks, "larder_counter", Counter { current, peak, allocated, freed });
    same!(checks, "larder_counters", Counters { all, small_pool, large_pool });
    same!(checks, "larder_timed_calls", TimedCalls { count, total_us, max_us, min_us });
    same!(checks, "larder_pinned_keeping", PinnedKeeping { limit_bytes, ahead_bytes, idle_s });
    same!(checks, "larder_pinned_calls", PinnedCalls { got, given_back, by_size });
    same!(
        checks,
        "larder_stats",
        Stats {
            allocation,
            segment,
            active,
            inactive_split,
            allocated_bytes,
            reserved_bytes,
            active_bytes,
            inactive_split_bytes,
            requested_bytes,
            oversize_allocations,
            oversize_segments,
            num_alloc_retries,
            num_ooms,
            num_oom_rejections,
            num_sync_all_streams,
            num_device_alloc,
            num_device_free,
            max_split_size,
        }
    );
}

fn about_hooks(checks: &mut Checks) {
    same!(
        checks,
        "larder_source",
        Source {
            alloc,
            free,
            release,
            data,
            properties,
            registrar,
            decline,
            init,
            reset,
            set_memory_fraction,
            base_allocation,
            record_stream,
            begin_pool,
            end_pool,
            release_pool,
        }
    );
    same!(
        checks,
        "larder_source_counts",
        SourceCounts { made, given_back, refused, failed, held_bytes }
    );
    same!(checks, "larder_position", Position { segment, offset, generation });
    same!(checks, "larder_filter", Filter { kind, stream, takes, release, data });
    same!(checks, "larder_expandable", Expandable { stream, is_small, mapped_bytes });
    same!(checks, "larder_contexts", ContextFunctions { gather, retain, release, data });
    same!(
        checks,
        "larder_history_options",
        Options { max_entries, level, clear, skip, contexts, clock, clock_data }
    );
}

fn about_snapshots(checks: &mut Checks) {
    same!(
        checks,
        "larder_event",
        Event {
            action,
            device,
            addr,
            size,
            stream,
            pool,
            time_ns,
            context,
            compile_context,
            user_metadata,
            internal_metadata,
        }
    );
    same!(checks, "larder_snapshot_block", Block { addr, size, requested_size, state, context });
    same!(
        checks,
        "larder_snapshot_segment",
        Segment {
            device,
            addr,
            total_size,
            allocated_size,
            active_size,
            requested_size,
            stream,
            is_large,
            is_expandable,
            pool,
            serial,
            context,
            blocks,
            block_count,
        }
    );
    same!(checks, "larder_annotation", Annotation { device, start, time_ns, name });
}

fn numbers() -> Checks {
    let version = |part: &str| part.parse::<u64>().unwrap();
    let numbers = [
        ("LARDER_VERSION_MAJOR", version(env!("CARGO_PKG_VERSION_MAJOR"))),
        ("LARDER_VERSION_MINOR", version(env!("CARGO_PKG_VERSION_MINOR"))),
        ("LARDER_OK", Status::Ok as u64),
        ("LARDER_OUT_OF_MEMORY", Status::OutOfMemory as u64),
        ("LARDER_UNKNOWN_ADDRESS", Status::UnknownAddress as u64),
        ("LARDER_BAD_ARGUMENT", Status::BadArgument as u64),
        ("LARDER_BAD_SETTING", Status::BadSetting as u64),
        ("LARDER_BAD_POOL", Status::BadPool as u64),
        ("LARDER_NO_DEVICE", Status::NoDevice as u64),
        ("LARDER_DEVICE_ERROR", Status::DeviceError as u64),
        ("LARDER_NOT_SUPPORTED", Status::NotSupported as u64),
        ("LARDER_INTERNAL", Status::Internal as u64),
        ("LARDER_DIVERGED", Status::Diverged as u64),
        ("LARDER_EXCHANGE_FAILED", Status::ExchangeFailed as u64),
        ("LARDER_NOT_FREE", Status::NotFree as u64),
        ("LARDER_OTHER_ERROR", Status::Other as u64),
        ("LARDER_NOT_WOKEN", Status::NotWoken as u64),
        ("LARDER_KEEP_CONTENTS", u64::from(keep::CONTENTS)),
        ("LARDER_KEEP_NOTHING", u64::from(keep::NOTHING)),
        ("LARDER_KEEP_ZEROS", u64::from(keep::ZEROS)),
        ("LARDER_KEEP_AS_TAGGED", u64::from(keep::AS_TAGGED)),
        ("LARDER_SOURCE_UNSPLIT", u64::from(source_property::UNSPLIT)),
        ("LARDER_SOURCE_COLLECTIVE", u64::from(source_property::COLLECTIVE)),
        ("LARDER_PIN_BEST", u64::from(pinning::BEST)),
        ("LARDER_PIN_REGISTER", u64::from(pinning::REGISTER)),
        ("LARDER_PIN_DRIVER", u64::from(pinning::DRIVER)),
        ("LARDER_SEAL_BYTES", SEAL_BYTES as u64),
        ("LARDER_DIVISION_CLASSES", DIVISION_CLASSES as u64),
        ("LARDER_UNLIMITED", UNLIMITED),
        ("LARDER_FILTER_ANY", u64::from(filter_kind::ANY)),
        ("LARDER_FILTER_STREAM", u64::from(filter_kind::STREAM)),
        ("LARDER_FILTER_THREAD", u64::from(filter_kind::THREAD)),
        ("LARDER_FILTER_CAPTURE", u64::from(filter_kind::CAPTURE)),
        ("LARDER_FILTER_FUNCTION", u64::from(filter_kind::FUNCTION)),
        ("LARDER_ALLOC", Action::Alloc as u64),
        ("LARDER_FREE_REQUESTED", Action::FreeRequested as u64),
        ("LARDER_FREE_COMPLETED", Action::FreeCompleted as u64),
        ("LARDER_SEGMENT_ALLOC", Action::SegmentAlloc as u64),
        ("LARDER_SEGMENT_FREE", Action::SegmentFree as u64),
        ("LARDER_SEGMENT_MAP", Action::SegmentMap as u64),
        ("LARDER_SEGMENT_UNMAP", Action::SegmentUnmap as u64),
        ("LARDER_SNAPSHOT", Action::Snapshot as u64),
        ("LARDER_OOM", Action::OutOfMemory as u64),
        ("LARDER_ANNOTATE", Action::Annotate as u64),
        ("LARDER_LEVEL_NEVER", Level::Never as u64),
        ("LARDER_LEVEL_STATE", Level::State as u64),
        ("LARDER_LEVEL_ALLOC", Level::Alloc as u64),
        ("LARDER_LEVEL_ALL", Level::All as u64),
        ("LARDER_BLOCK_FREE", u64::from(block_state::FREE)),
        ("LARDER_BLOCK_LIVE", u64::from(block_state::LIVE)),
        ("LARDER_BLOCK_WAITING", u64::from(block_state::WAITING)),
    ];
    numbers.map(|(name, value)| (name.to_owned(), value)).to_vec()
}

fn header_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// A program that compiles exactly if every check holds.
fn compiles(checks: &Checks, name: &str) -> Result<(), String> {
    let mut source = String::from("#include <stddef.h>\n#include \"larder.h\"\n");
    for (expression, value) in checks {
        source += &format!("_Static_assert({expression} == {value}u, \"{expression}\");\n");
    }
    let file = std::env::temp_dir().join(format!("larder-{name}-{}.c", std::process::id()));
    fs::write(&file, source).unwrap();
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-fsyntax-only", "-I"]).arg(header_folder()).arg(&file);
    let output = compile.output().expect("this test needs a C compiler, `cc`");
    fs::remove_file(&file).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(said) }
}

#[test]
fn every_layout_and_number_is_as_in_the_header() {
    let checks = [numbers(), structs()].concat();
    compiles(&checks, "layouts").unwrap_or_else(|said| panic!("{said}"));
    // The check itself must be able to fail.
    let wrong = vec![("sizeof(larder_counter)".to_owned(), 31)];
    assert!(compiles(&wrong, "wrong").unwrap_err().contains("sizeof(larder_counter)"));
}

#[test]
fn every_struct_and_number_of_the_header_is_compared() {
    let header = fs::read_to_string(header_folder().join("larder.h")).unwrap();
    let checks = [numbers(), structs()].concat();
    let compared = |name: &str| {
        let is_whole = |text: &str| {
            text.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| word == name)
        };
        checks.iter().any(|(expression, _)| is_whole(expression))
    };
    let mut seen = 0;
    for line in header.lines() {
        // Structs with fields end in `} name;`, numbers begin in `LARDER_NAME =` or are defined.
        let closed = line.strip_prefix("} ").and_then(|rest| rest.split(';').next());
        let enums = [
            "status",
            "filter_kind",
            "source_property",
            "action",
            "level",
            "block_state",
            "pinning",
            "keep",
        ];
        let is_enum = enums.iter().any(|name| closed == Some(&format!("larder_{name}")));
        let number =
            line.trim_start().strip_prefix("LARDER_").and_then(|rest| rest.split_once(" = "));
        let defined = line.strip_prefix("#define LARDER_").and_then(|rest| rest.split_once(' '));
        let number = number.or(defined).map(|(name, _)| format!("LARDER_{name}"));
        for name in closed.filter(|_| !is_enum).map(str::to_owned).into_iter().chain(number) {
            assert!(compared(&name), "{name} is not compared");
            seen += 1;
        }
    }
    assert!(seen > 45, "only {seen} were found");
}
