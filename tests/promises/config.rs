//! Promise: the configuration file lists every key with its default, each later source wins, and nothing wrong or unknown passes silently.

use std::path::{Path, PathBuf};

use adaroll::config::{Config, Flag, Loaded, Source};
use toml::{Table, Value};

/// A file with this text, in a folder that lives as long as the first.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("adaroll.toml");
    std::fs::write(&path, text).unwrap();
    (dir, path)
}

fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn load(text: &str, pairs: &[(&str, &str)], flags: Vec<Flag>) -> Result<Loaded, String> {
    let (_dir, path) = file(text);
    Config::load(Some(&path), variables(pairs), flags).map_err(|error| error.to_string())
}

/// The default file cannot drift from the code: it names every key, with its default, and a comment before each run of keys.
#[test]
fn the_default_file_is_the_defaults_key_by_key() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("server-config/cpu.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let loaded = Config::load(Some(&path), [], []).unwrap();
    assert_eq!(loaded.config, Config::default());
    let written: Table = text.parse().unwrap();
    let defaults = Table::try_from(Config::default()).unwrap();
    let names = |table: &Table| -> Vec<String> {
        let mut names: Vec<String> =
            table.iter().flat_map(|(section, keys)| keys.as_table().unwrap().keys().map(move |key| format!("{section}.{key}"))).collect();
        names.sort();
        names
    };
    assert_eq!(names(&written), names(&defaults), "the file names every key and no other");
    assert!(names(&defaults).len() >= 44, "{} keys", names(&defaults).len());
    assert_eq!(loaded.sources.len(), names(&defaults).len());
    assert!(loaded.changed().is_empty());
    // A twin: a file with one value changed is told apart.
    let changed = text.replace("max_open = 64", "max_open = 65");
    assert_ne!(changed, text);
    assert_ne!(load(&changed, &[], vec![]).unwrap().config, Config::default());
}

#[test]
fn each_later_source_wins() {
    let text = "[server]\nport = 1000\n[jobs]\nmax_open = 20\nmax_running = 3\n";
    let port = |loaded: &Loaded| loaded.config.server.port;
    let flag = || vec![Flag { key: "server.port", flag: "--port", value: Value::Integer(3000) }];
    assert_eq!(port(&Config::load(None, [], []).unwrap()), 8000);
    assert_eq!(port(&load(text, &[], vec![]).unwrap()), 1000);
    assert_eq!(port(&load(text, &[("ADAROLL_SERVER_PORT", "2000")], vec![]).unwrap()), 2000);
    let all =
        load(text, &[("ADAROLL_SERVER_PORT", "2000"), ("ADAROLL_LOG", "debug"), ("ADAROLL_TOKEN", "x"), ("PATH", "/")], flag()).unwrap();
    assert_eq!(port(&all), 3000);
    assert_eq!((all.config.jobs.max_open, all.config.jobs.max_running, all.config.rollout.look_ahead), (20, 3, 1024));
    assert_eq!(all.sources["server.port"], Source::Flag("--port".into()));
    assert!(matches!(&all.sources["jobs.max_running"], Source::File(_, 5)), "{:?}", all.sources);
    assert!(!all.sources.contains_key("rollout.look_ahead"));
    let changed: Vec<&str> = all.changed().into_iter().map(|(key, _)| key).collect();
    assert_eq!(changed, ["jobs.max_open", "jobs.max_running", "server.port"]);
}

#[test]
fn variables_have_their_keys_kind() {
    let pairs = [
        ("ADAROLL_REWARD_WEBHOOK_HOSTS", "a.internal:80, b.internal"),
        ("ADAROLL_ENGINE_PREFIX_CACHE", "false"),
        ("ADAROLL_ROLLOUT_Q_MIN", "0.5"),
        ("ADAROLL_STORE_PATH", ":memory:"),
        ("ADAROLL_SERVER_HOST", "::1"),
        ("ADAROLL_SERVER_LOG_FORMAT", "json"),
    ];
    let config = Config::load(None, variables(&pairs), []).unwrap().config;
    assert_eq!(config.reward.webhook_hosts, ["a.internal:80", "b.internal"]);
    assert!(!config.engine.prefix_cache && config.store.in_memory());
    assert_eq!(config.rollout.q_min, 0.5);
    assert!(config.server.host.is_ipv6());
}

#[test]
fn everything_wrong_names_its_place_and_key() {
    const LONG: &str = "0123456789abcdef0123";
    let hex = "sha256:zz";
    let rows: Vec<(String, &str, &[&str])> = vec![
        ("[jobs]\n\nmax_opne = 3\n".into(), "adaroll.toml:3: jobs.max_opne", &["max_open, max_running", "remove it"]),
        ("[job]\nmax_open = 3\n".into(), "adaroll.toml:1: job", &["[jobs]"]),
        ("port = 3\n".into(), "adaroll.toml:1: port", &["[server]"]),
        ("model = 3\n".into(), "adaroll.toml:1: model", &["section"]),
        ("[server]\nport = \n".into(), "adaroll.toml:2: is not TOML", &[]),
        ("[server]\nport = 1\nport = 2\n".into(), "adaroll.toml:3: is not TOML", &[]),
        ("[server]\nport = 70000\n".into(), "adaroll.toml:2: server.port is", &["70000"]),
        ("[server]\nport = -1\n".into(), "adaroll.toml:2: server.port is", &["-1"]),
        ("[server]\nport = \"high\"\n".into(), "adaroll.toml:2: server.port is", &["high", "whole number"]),
        ("[server]\nhost = \"localhost\"\n".into(), "adaroll.toml:2: server.host", &["IP address"]),
        ("[server]\nlog_format = \"xml\"\n".into(), "adaroll.toml:2: server.log_format", &["xml", "text", "json"]),
        ("[server]\nhost = \"0.0.0.0\"\n".into(), "adaroll.toml:2: server.host is 0.0.0.0", &["tokens", "127.0.0.1"]),
        (format!("[server]\ndata_token = \"{LONG}\"\n"), "server.admin_token is not set", &["both"]),
        (format!("[server]\ndata_token = \"{LONG}\"\nadmin_token = \"{LONG}\"\n"), "adaroll.toml:3: server.admin_token equals", &[]),
        (format!("[server]\ndata_token = \"short\"\nadmin_token = \"{LONG}\"\n"), "adaroll.toml:2: server.data_token must be", &["16"]),
        (format!("[server]\ndata_token = \"{hex}\"\nadmin_token = \"{LONG}\"\n"), "adaroll.toml:2: server.data_token must hold", &["64"]),
        ("[server]\ndata_token_file = \"/none\"\n".into(), "adaroll.toml:2: server.data_token_file is /none", &["cannot be read"]),
        ("[limits]\nmax_prompts = 0\n".into(), "adaroll.toml:2: limits.max_prompts is 0", &["between 1 and"]),
        ("[jobs]\nmax_running = 65\n".into(), "adaroll.toml:2: jobs.max_running is 65", &["max_open (64)"]),
        ("[engine]\nisa = \"neon\"\n".into(), "adaroll.toml:2: engine.isa", &["scalar, avx2 or avx512"]),
        ("[engine]\nprefix_cache = 1\n".into(), "adaroll.toml:2: engine.prefix_cache is", &["true or false"]),
        ("[rollout]\nq_min = 0\n".into(), "adaroll.toml:2: rollout.q_min", &[]),
        ("[rollout]\nq_min = nan\n".into(), "adaroll.toml:2: rollout.q_min is NaN", &[]),
        ("[rollout]\nq_min = 2.0\n".into(), "adaroll.toml:2: rollout.q_min is 2", &["0.3 to 0.5"]),
        ("[reward]\nwebhook_batch = 0\n".into(), "adaroll.toml:2: reward.webhook_batch is 0", &["between 1"]),
        ("[reward]\nlocal_timeout_s = nan\n".into(), "adaroll.toml:2: reward.local_timeout_s is NaN", &["1 to 86400"]),
        ("[reward]\nwebhook_hosts = [\"http://a/\"]\n".into(), "adaroll.toml:2: reward.webhook_hosts holds", &["without scheme"]),
        ("[reward]\nwebhook_hosts = [\"a\", 3]\n".into(), "adaroll.toml:2: reward.webhook_hosts is", &["list of strings"]),
        ("[store]\npath = \"\"\n".into(), "adaroll.toml:2: store.path is empty", &[":memory:"]),
        ("[store]\nkeep_days = 0\n".into(), "adaroll.toml:2: store.keep_days is 0", &[]),
    ];
    for (text, place, words) in &rows {
        let problem = load(text, &[], vec![]).expect_err(text);
        println!("{problem}");
        assert!(problem.contains(place), "{text}: {problem}");
        for word in *words {
            assert!(problem.contains(word), "{text}: {problem} lacks {word}");
        }
        assert!(!problem.contains(LONG), "a token was printed: {problem}");
    }
    for (name, value, words) in [
        ("ADAROLL_JOBS_MAX_OPNE", "3", "environment variable ADAROLL_JOBS_MAX_OPNE: jobs.max_opne is not known"),
        ("ADAROLL_SERVER_PORT", "high", "environment variable ADAROLL_SERVER_PORT: server.port is"),
        ("ADAROLL_SERVER_HOST", "0.0.0.0", "environment variable ADAROLL_SERVER_HOST: server.host is 0.0.0.0"),
    ] {
        let problem = load("", &[(name, value)], vec![]).unwrap_err();
        assert!(problem.contains(words), "{problem}");
    }
    let problem = Config::load(Some(Path::new("/none.toml")), [], []).unwrap_err().to_string();
    assert!(problem.contains("/none.toml") && problem.contains("--config"), "{problem}");
    let two = load("[jobs]\nnone = 1\nmax_open = 1\n[nowhere]\n", &[], vec![]).unwrap_err();
    assert_eq!(two.lines().count(), 2, "every unknown key is told at once: {two}");
}

#[test]
fn tokens_come_from_files_and_stay_out_of_sight() {
    let (_dir, path) = file("data-token-of-the-test\n");
    let (_other, admin) = file("  admin-token-of-the-test  ");
    let text = format!(
        "[server]\nhost = \"0.0.0.0\"\ndata_token_file = {:?}\nadmin_token_file = {:?}\n",
        path.to_str().unwrap(),
        admin.to_str().unwrap()
    );
    let loaded = load(&text, &[], vec![]).unwrap();
    assert_eq!(loaded.config.server.data_token, "data-token-of-the-test");
    assert_eq!(loaded.config.server.admin_token, "admin-token-of-the-test");
    assert!(!format!("{loaded:?}").contains("-of-the-test"), "{loaded:?}");
    let both = load(&text, &[("ADAROLL_SERVER_DATA_TOKEN", "0123456789abcdef")], vec![]).unwrap_err();
    assert!(both.contains("server.data_token_file is set beside data_token"), "{both}");
}
