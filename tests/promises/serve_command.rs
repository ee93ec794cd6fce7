//! Promise: `adaroll serve --check` tells whether the server would start, and why not, without starting or leaving anything; flags win over
//! the file, and an address that others can reach needs tokens.

use std::path::Path;

use adaroll::commands::serve::{Checked, ServeArgs, check, options};
use clap::Parser;

use crate::tiny_model::{TinyModel, tiny_model};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: ServeArgs,
}

fn args(more: &[&str]) -> ServeArgs {
    Cli::try_parse_from(["serve"].into_iter().chain(more.iter().copied())).unwrap_or_else(|e| panic!("{e}")).args
}

async fn checked(more: &[&str]) -> Checked {
    check(args(more).load().unwrap()).await
}

fn model(dir: &Path) -> String {
    tiny_model(dir, &TinyModel::default());
    // Its content is for the loader; the check looks at headers and names.
    std::fs::write(dir.join("tokenizer.json"), "{}").unwrap();
    dir.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn check_finds_what_would_stop_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let model = model(dir.path());
    let store = dir.path().join("jobs.db");
    let store = store.to_str().unwrap();
    let good = ["--model", &model, "--port", "0", "--store", store];
    let found = checked(&good).await;
    println!("{found}");
    assert!(found.ok(), "{found}");
    assert!(!Path::new(store).exists(), "nothing was left behind");
    assert!(found.to_string().contains("server.port by --port"), "{found}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (what, more) in [
        ("model.dir is not set", vec!["--port", "0", "--store", store]),
        ("/none", vec!["--model", "/none", "--port", "0", "--store", store]),
        ("cannot listen", vec!["--model", &model, "--port", &port, "--store", store]),
        ("--store", vec!["--model", &model, "--port", "0", "--store", "/none/at/all/jobs.db"]),
    ] {
        let found = checked(&more).await;
        assert!(!found.ok() && found.to_string().contains(what), "{what}: {found}");
        assert!(found.to_string().ends_with("the server would not start"));
    }
    std::fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    assert!(checked(&good).await.to_string().contains("tokenizer.json"));
}

#[test]
fn flags_reach_their_keys() {
    let all =
        ["--model", "m", "--host", "::1", "--port", "1", "--store", ":memory:", "--threads", "3", "--isa", "scalar", "--max-batch-tokens"];
    let loaded = args(&[&all[..], &["64", "--max-sequences", "5", "--kv-blocks", "7", "--no-prefix-cache", "--ignore-eos"]].concat())
        .load()
        .unwrap();
    let config = &loaded.config;
    assert_eq!((config.model.dir.to_str(), config.server.port, config.store.in_memory()), (Some("m"), 1, true));
    let engine = config.engine.options();
    assert_eq!((engine.threads, engine.ignore_eos, engine.settings.prefix_cache), (3, true, false));
    assert_eq!((engine.settings.max_batch_tokens, engine.settings.max_sequences, engine.settings.kv_blocks), (64, 5, Some(7)));
    assert_eq!(options(config).unwrap().max_in_flight, 5, "as many as the engine runs, unless set");
    assert_eq!(loaded.sources.len(), 11, "every flag was counted");
    let public = args(&["--host", "0.0.0.0"]).load().unwrap_err().to_string();
    assert!(public.contains("--host: server.host is 0.0.0.0") && public.contains("ADAROLL_SERVER_DATA_TOKEN"), "{public}");
}
