//! Snapshots as users meet them: recorded on the simulated GPU, converted, and read again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use larder_sim::script::Script;
use serde_json::Value;

const SCRIPT: &str = "\
alloc 0 1000 0
alloc 1 30000000 1
pool-new 1
pool-begin 1 0
alloc 2 5000000 0
pool-end 1
pool-release 1
alloc 3 700 0
free 0
free 3
free 1
";

/// A folder of its own for each story, gone with it.
struct Desk(PathBuf);

impl Desk {
    fn new(name: &str) -> Desk {
        let folder = std::env::temp_dir().join(format!("larder-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Desk(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn script(&self) -> PathBuf {
        let path = self.file("script.ops");
        fs::write(&path, SCRIPT).unwrap();
        path
    }

    fn snapshot(&self, from: &Path, to: &str, more: &[&str]) -> PathBuf {
        let out = self.file(to);
        let output = larder(&["snapshot", &text(from), "-o", &text(&out)], more);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        out
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn larder(words: &[&str], more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_larder")).args(words).args(more).output().unwrap()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Checks a snapshot against the published schema.
fn assert_valid(snapshot: &Value) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let schema = json(&root.join("../../docs/snapshot.schema.json"));
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(snapshot)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

#[test]
fn json_snapshots_follow_the_published_schema() {
    let desk = Desk::new("schema");
    let script = desk.script();
    for conf in ["", "expandable_segments:True,max_split_size_mb:40"] {
        let shot = json(&desk.snapshot(&script, "shot.json", &["--conf", conf]));
        assert_valid(&shot);
        assert_eq!(shot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"], conf);
    }
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads");
    let pickles = recording.read_dir().unwrap().flatten().map(|entry| entry.path());
    let small = pickles.filter(|path| text(path).contains(".pickle"));
    let small = small.min_by_key(|path| path.metadata().unwrap().len()).unwrap();
    assert_valid(&json(&desk.snapshot(&small, "recorded.json", &[])));
    // The schema itself can say no.
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let schema = json(&root.join("../../docs/snapshot.schema.json"));
    let validator = jsonschema::validator_for(&schema).unwrap();
    for wrong in [r#"{"segments": []}"#, r#"{"segments": [{}], "device_traces": []}"#] {
        assert!(!validator.is_valid(&serde_json::from_str(wrong).unwrap()), "{wrong}");
    }
}

#[test]
fn every_way_round_gives_the_same_operations() {
    let desk = Desk::new("ways");
    let script = desk.script();
    let plain = desk.file("plain.ops");
    fs::write(&plain, "alloc 0 1000 0\nalloc 1 30000000 1\nfree 0\nalloc 2 77 0\nfree 1\n")
        .unwrap();
    for (from, is_plain) in [(&plain, true), (&script, false)] {
        let pickle = desk.snapshot(from, "a.pickle.gz", &[]);
        let by_pickle = fs::read_to_string(desk.snapshot(&pickle, "a.ops", &[])).unwrap();
        if is_plain {
            assert_eq!(by_pickle, fs::read_to_string(from).unwrap());
        }
        let json = desk.snapshot(from, "b.json.gz", &[]);
        let back = desk.snapshot(&json, "b.pickle", &[]);
        let tape = desk.snapshot(from, "c.tape", &[]);
        for other in [&json, &back, &tape] {
            let ops = fs::read_to_string(desk.snapshot(other, "other.ops", &[])).unwrap();
            assert_eq!(ops, by_pickle, "{}", other.display());
        }
        Script::read(by_pickle.as_bytes()).unwrap();
    }
}

#[test]
fn every_command_reads_a_tape() {
    let desk = Desk::new("commands");
    let tape = text(&desk.snapshot(&desk.script(), "run.tape", &[]));
    let replayed = larder(&["replay", &tape, "--json"], &[]);
    let stats: Value = serde_json::from_slice(&replayed.stdout).unwrap();
    assert_eq!(stats["allocation.all.allocated"], 4);
    assert_eq!(stats["allocation.all.current"], 1);
    for command in ["compare", "fit"] {
        let output = larder(&[command, &tape], &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(larder(&["bench", &tape, "--repeat", "1"], &[]).status.success());
    // Killed in the middle, it would end with room for more.
    let mut bytes = fs::read(&tape).unwrap();
    bytes.truncate(64 * 4 + 17);
    bytes.resize(1 << 20, 0);
    bytes[64 * 4..64 * 5].fill(0);
    fs::write(&tape, bytes).unwrap();
    let replayed = larder(&["replay", &tape, "--json"], &[]);
    let stats: Value = serde_json::from_slice(&replayed.stdout).unwrap();
    assert_eq!(stats["allocation.all.allocated"], 1, "one segment, one block, and another segment");
}

#[test]
fn a_trace_for_perfetto_adds_up() {
    let desk = Desk::new("perfetto");
    let trace = json(&desk.snapshot(&desk.script(), "run.perfetto.json", &[]));
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).collect::<Vec<_>>();
    let counters = of("C");
    let last = &counters.last().unwrap()["args"];
    assert_eq!(last["allocated"], 5_000_000);
    assert_eq!(last["awaited"], 0);
    assert!(counters.iter().all(|event| event["args"]["reserved"].as_i64().unwrap() >= 0));
    let times: Vec<u64> = events.iter().filter_map(|event| event["ts"].as_u64()).collect();
    assert!(times.is_sorted());
    let ids = |phase: &str| -> Vec<u64> {
        of(phase).iter().map(|event| event["id"].as_u64().unwrap()).collect()
    };
    let (begun, ended) = (ids("b"), ids("e"));
    assert!(ended.iter().all(|id| begun.contains(id)));
    assert_eq!(begun.len() - ended.len(), 1 + 3, "a live block, and the segments");
}

#[test]
fn mistakes_are_named() {
    let desk = Desk::new("mistakes");
    let script = text(&desk.script());
    let said_with = |code: i32, words: &[&str]| {
        let output = larder(words, &[]);
        assert_eq!(output.status.code(), Some(code));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = |words: &[&str]| said_with(1, words);
    let out = text(&desk.file("out.xyz"));
    assert!(said_with(2, &["snapshot", &script, "-o", &out]).contains("does not say the format"));
    let nowhere = text(&desk.file("no/such/folder.json"));
    assert!(said(&["snapshot", &script, "-o", &nowhere]).contains("folder.json"));
    let bad = desk.file("bad.json");
    fs::write(&bad, "{\"segments\": [{\"device\": 0}]}").unwrap();
    let sentence = said(&["snapshot", &text(&bad), "-o", &text(&desk.file("x.pickle"))]);
    assert!(sentence.contains("missing field `address`"), "{sentence}");
    assert!(!desk.file("x.pickle").exists() && !desk.file("x.pickle.part").exists());
    let shot = text(&desk.snapshot(Path::new(&script), "shot.json", &[]));
    let tape = text(&desk.file("x.tape"));
    assert!(said(&["snapshot", &shot, "-o", &tape]).contains("only a script"));
    let usage = larder(&["snapshot", &shot, "-o", &tape, "--to", "xml"], &[]);
    assert_eq!(usage.status.code(), Some(2));
}

#[test]
fn a_listing_has_a_line_for_each_entry() {
    let desk = Desk::new("listing");
    let (script, out) = (text(&desk.script()), text(&desk.file("lines")));
    let words =
        ["replay", &script, "--history", &out, "--level", "all", "--skip", "free_requested"];
    assert!(larder(&words, &[]).status.success());
    let lines = fs::read_to_string(&out).unwrap();
    let first: Vec<&str> =
        lines.lines().take(2).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(first, ["segment_alloc", "alloc"]);
    assert!(!lines.contains("free_requested"));
    let usage = larder(&["replay", &script, "--level", "all"], &[]);
    assert_eq!(usage.status.code(), Some(2), "levels are for a history");
}

#[test]
fn packed_scripts_are_read_and_tapes_are_not_packed() {
    let desk = Desk::new("packed");
    let script = desk.script();
    let packed = desk.snapshot(&script, "packed.ops.gz", &[]);
    assert!(fs::read(&packed).unwrap().starts_with(&[0x1f, 0x8b]));
    let output = larder(&["replay", &text(&packed)], &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = larder(&["snapshot", &text(&script), "-o", &text(&desk.file("x.tape.gz"))], &[]);
    assert!(!output.status.success() && !desk.file("x.tape.gz").exists());
}

/// What is in the way is somebody's: a link stays a link, and a failure leaves everything as it
/// was.
#[cfg(unix)]
#[test]
fn writing_destroys_nothing_that_is_in_the_way() {
    let desk = Desk::new("in-the-way");
    let script = desk.script();
    let (real, link) = (desk.file("real.json"), desk.file("link.json"));
    fs::write(&real, "old").unwrap();
    fs::write(desk.file("real.json.part0"), "somebody's").unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    desk.snapshot(&script, "link.json", &[]);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_valid(&json(&real));
    assert_eq!(fs::read(desk.file("real.json.part0")).unwrap(), b"somebody's");

    let bad = desk.file("bad.ops");
    fs::write(&bad, "pool-end 3\n").unwrap();
    for name in ["kept.json", "kept.tape"] {
        let kept = desk.file(name);
        fs::write(&kept, "kept").unwrap();
        let output = larder(&["snapshot", &text(&bad), "-o", &text(&kept)], &[]);
        assert!(!output.status.success());
        assert_eq!(fs::read(&kept).unwrap(), b"kept", "{name}");
    }
    let left: Vec<_> = fs::read_dir(&desk.0).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(left.len(), 7, "{left:?}");

    let output = larder(&["snapshot", &text(&script), "--to", "json", "-o", "/dev/null"], &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}
