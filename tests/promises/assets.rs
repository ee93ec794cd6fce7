//! Where tests find the real model and the data files.

use std::path::PathBuf;

/// The folder of the real small model. A test that needs it fails without it: a skipped test proves nothing.
pub fn smollm2() -> PathBuf {
    let models = std::env::var_os("ADAROLL_MODELS").map_or_else(|| root().join("target/models"), PathBuf::from);
    let folder = models.join("smollm2");
    assert!(
        folder.join("tokenizer.json").is_file(),
        "no model in {}: run `python3 tests/assets/fetch_smollm2.py`, or set ADAROLL_MODELS to the folder that holds smollm2/",
        folder.display()
    );
    folder
}

/// A file of tests/data.
pub fn data(name: &str) -> PathBuf {
    root().join("tests/data").join(name)
}

/// The rows of a file of JSON lines in tests/data.
pub fn rows(name: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(data(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
