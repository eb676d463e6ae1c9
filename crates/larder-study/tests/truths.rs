//! What Larder takes allocations for, held against what the programs themselves said of them:
//! recordings of `torch/card/truths.py`, made on a card.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use larder_snapshot::{Action, Snapshot};
use larder_study::category::{Categories, Category, KNOWN, OwnRules};
use larder_study::recording::{Origin, Recording};

/// What is right at the peak, of all bytes there.
const RIGHT_MIN: f64 = 0.98;

fn folder() -> PathBuf {
    match std::env::var_os("LARDER_TRUTHS") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/truths"),
    }
}

/// The letters of `truths.py`.
fn letter(category: Category) -> char {
    let at = KNOWN.iter().position(|&known| known == category).expect("a known one");
    ['p', 'g', 'o', 'a', 'c', 'i', 'w', 't', '?'][at]
}

/// A letter for each allocation of a program, in their order.
fn truth(folder: &Path, name: &str) -> Vec<char> {
    use std::io::Read;
    let path = folder.join(format!("{name}.truth.json.gz"));
    let file = std::fs::File::open(&path).expect("a file of truths");
    let mut text = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut text).expect("text");
    let told: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    told["allocations"].as_str().expect("letters").chars().collect()
}

/// The bytes at the peak, by what they are and what they were taken for.
fn at_peak(folder: &Path, name: &str) -> BTreeMap<(char, char), u64> {
    let path = folder.join(format!("{name}.pickle.gz"));
    let snapshot = Snapshot::open(&path, |_| {}).expect("a snapshot");
    let recording = Recording::from_snapshot(&snapshot, 0).expect("a recording");
    let rules = OwnRules::default();
    let categories = Categories::of(&snapshot, 0, &recording.origins, &rules);
    let truth = truth(folder, name);
    let trace = snapshot.trace(0).expect("a trace");
    let mut taken_for: BTreeMap<usize, char> = BTreeMap::new();
    for (id, origin) in recording.origins.iter().enumerate() {
        if let Origin::Entry(index) = *origin {
            taken_for.insert(index, letter(categories.get(id as u64)));
        }
    }
    let (mut live, mut now, mut number) = (BTreeMap::new(), BTreeMap::new(), 0);
    let (mut bytes, mut peak_bytes, mut peak) = (0, 0, BTreeMap::new());
    for (index, entry) in trace.iter().enumerate() {
        match entry.action {
            Action::Alloc => {
                let what = (truth[number], taken_for[&index]);
                number += 1;
                live.insert(entry.addr, (what, entry.size_bytes));
                *now.entry(what).or_insert(0) += entry.size_bytes;
                bytes += entry.size_bytes;
                if bytes > peak_bytes {
                    (peak_bytes, peak) = (bytes, now.clone());
                }
            }
            Action::FreeCompleted => {
                if let Some((what, size_bytes)) = live.remove(&entry.addr) {
                    *now.get_mut(&what).expect("it was counted") -= size_bytes;
                    bytes -= size_bytes;
                }
            }
            _ => {}
        }
    }
    assert_eq!(number, truth.len(), "{name}: there is a letter for each allocation");
    peak.retain(|_, bytes| *bytes > 0);
    peak
}

#[test]
fn categories_are_those_that_the_programs_know() {
    let folder = folder();
    let files = std::fs::read_dir(&folder).expect("the folder of truths");
    let mut names: Vec<String> = files
        .filter_map(|file| {
            let name = file.expect("a file").file_name().into_string().expect("a name");
            name.strip_suffix(".pickle.gz").map(str::to_owned)
        })
        .collect();
    names.sort();
    assert!(names.len() >= 5, "{names:?}");
    let mut wrong = Vec::new();
    for name in names {
        let peak = at_peak(&folder, &name);
        let all: u64 = peak.values().sum();
        let right: u64 = peak.iter().filter(|((is, for_), _)| is == for_).map(|(_, b)| b).sum();
        let share = right as f64 / all as f64;
        println!("{name}: {all} bytes at the peak, {:.3} % right: {peak:?}", share * 100.0);
        if share < RIGHT_MIN {
            wrong.push(format!("{name}: {:.2} %", share * 100.0));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
