//! What is asked of a recording by SQL, what memory is for, and that all JSON is as
//! docs/answers.schema.json describes it.

mod program;

use std::path::{Path, PathBuf};

use program::{json, larder, recorded, scratch, stdout};
use serde_json::Value;

/// A recording of a small language model that was made on a card.
fn training() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../larder-study/tests/truths/gpt2-small.pickle.gz")
}

#[test]
fn what_show_and_a_query_say_of_the_end_is_one() {
    let shown = json(&["show", "--at", "end", "--json"], &training());
    let select = "SELECT category, count(*) FROM blocks WHERE end_event IS NULL GROUP BY 1";
    let asked = json(&["query", select, "--json"], &training());
    assert_eq!(asked["version"], 1);
    let mut of_show: Vec<(String, u64)> = shown["categories"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|share| {
            let name = share["category"].as_str().expect("a name").to_owned();
            (name, share["blocks"].as_u64().expect("a count"))
        })
        .collect();
    of_show.sort();
    let of_query: Vec<(String, u64)> = asked["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| (row[0].as_str().expect("a name").to_owned(), row[1].as_u64().expect("a count")))
        .collect();
    assert_eq!(of_show, of_query);
    assert!(of_show.iter().any(|(name, _)| name == "optimizer"), "{of_show:?}");
}

#[test]
fn ones_own_rules_come_first() {
    let rules = scratch("mine.categories", "# mine\nattention: modeling_gpt2.py:.* forward\n");
    let rules = rules.to_str().expect("a plain path");
    let select = "SELECT DISTINCT category FROM blocks WHERE stack IN \
                  (SELECT stack FROM frames WHERE file LIKE '%modeling_gpt2.py')";
    let words = ["query", select, "--json", "--categories", rules];
    assert_eq!(json(&words, &training())["rows"], serde_json::json!([["attention"]]));
    let bad = scratch("bad.categories", "attention: (\n");
    let bad = bad.to_str().expect("a plain path");
    let refused = larder(&["show", "--categories", bad], Some(&training()));
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2));
    assert!(why.contains("bad.categories: line 1: '(' is no regular expression"), "{why}");
}

#[test]
fn an_answer_is_a_file_of_parquet() {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("blocks.parquet");
    let words = ["query", "SELECT * FROM blocks", "-o", out.to_str().expect("a plain path")];
    assert_eq!(stdout(&larder(&words, Some(&training()))), "");
    let written = std::fs::read(&out).expect("it is there");
    assert!(written.starts_with(b"PAR1") && written.ends_with(b"PAR1"));
    let refused = larder(&["query", "SELECT 1", "-o", "x.csv"], Some(&training()));
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn a_query_that_is_none_is_refused() {
    for select in ["DROP TABLE blocks", "SELECT nothing FROM blocks", "hello"] {
        let refused = larder(&["query", select], Some(&training()));
        assert_eq!(refused.status.code(), Some(2), "{select}");
    }
    let script = scratch("query.ops", "alloc 1 512 0\n");
    let refused = larder(&["query", "SELECT 1"], Some(&script));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("this is a script"));
    let made = recorded("query.pickle", &script, &[]);
    assert_eq!(json(&["query", "SELECT bytes FROM blocks", "--json"], &made)["rows"][0][0], 512);
}

fn validator() -> jsonschema::Validator {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/answers.schema.json");
    let schema = std::fs::read_to_string(path).expect("the schema");
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    jsonschema::validator_for(&schema).expect("a schema")
}

/// What a command prints, whatever its exit code says.
fn answer(words: &[&str], file: &Path) -> Value {
    let output = larder(words, Some(file));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{words:?}: {error} {said}"))
}

fn recording(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../larder-study/tests").join(name)
}

#[test]
fn every_answer_is_as_the_schema_says() {
    let validator = validator();
    let failing = recording("card/training.pickle.gz");
    let calm = recording("truths/vision-small.pickle.gz");
    let script = scratch("schema.ops", "alloc 1 3MiB 0\nalloc 2 9MiB 0\nfree 1\n");
    let asked: [(&Path, &[&str]); 13] = [
        (&failing, &["explain"]),
        (&calm, &["explain"]),
        (&failing, &["show"]),
        (&calm, &["show", "--at", "peak"]),
        (&failing, &["compare"]),
        (&calm, &["replay"]),
        (&script, &["replay", "--passes", "2"]),
        (&calm, &["fit", "--cards", "16,H200"]),
        (&script, &["fit"]),
        (&script, &["tune", "--seconds", "1"]),
        (&script, &["compare", "--conf", ""]),
        (&script, &["bench", "--repeat", "1"]),
        (&calm, &["query", "SELECT category, 0.5, NULL FROM blocks LIMIT 3"]),
    ];
    for (file, words) in asked {
        let answer = answer(&[words, &["--json"]].concat(), file);
        let wrong: Vec<String> =
            validator.iter_errors(&answer).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{words:?} of {}: {wrong:?}", file.display());
        let each = answer.as_array().map_or(&answer, |rows| &rows[0]);
        assert_eq!(each["answer"], words[0], "each says which command it is of");
    }
}

#[test]
fn the_schema_refuses_what_is_none() {
    let validator = validator();
    for text in
        ["{}", "[{}]", r#"{"answer":"show","version":1}"#, r#"{"answer":"bench","version":2}"#]
    {
        let answer: Value = serde_json::from_str(text).expect("JSON");
        assert!(!validator.is_valid(&answer), "{text}");
    }
}
