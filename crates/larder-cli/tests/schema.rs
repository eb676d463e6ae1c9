//! What the commands print as JSON is as docs/answers.schema.json describes it.

mod program;

use std::path::{Path, PathBuf};

use program::{larder, scratch};
use serde_json::Value;

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
