//! `adaroll verify`: judges responses as a job judges its samples, without a server and without a model.
//!
//! One response given in arguments, or a file of them ([`rows`]), whose verdicts are written as lines or summed up ([`summary`]).

pub mod rows;
pub mod summary;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::commands::open::default_threads;
use crate::field::{self, FieldError};
use crate::reward::{Ruling, Spec, Verifier, math};
use crate::verify::{Answer, KINDS, Question, Reference};

use rows::Rows;
use summary::Summary;

/// Files of fewer rows are through before a bar would be read.
const ROWS_WITH_BAR: usize = 3000;

/// Judge responses against reference answers, as a job judges its samples.
///
/// One response:
///   adaroll verify --gold 72 --response 'So it is \boxed{72}.'
///   adaroll verify --gold '\frac{1}{2}' --response 'Answer: 0.5' --explain
///   adaroll verify --gold B --kind choice --response 'The answer is (B).'
///   adaroll verify --gold '^\d+$' --kind regex --response - < answer.txt
///   adaroll verify --reward '{"kind": "format", "mark": "boxed"}' --response - < answer.txt
/// Prints the verdict, where the answer was found and what decided, and the answer:
///   correct  (boxed/identical)  extracted: 72
/// Exit status 0 for correct, 1 for anything else, 2 where the arguments or the gold cannot be used.
///
/// A file of them, one JSON object a line:
///   {"id": "p1", "gold": "72", "response": "...", "kind": "math", "options": {"lenient": true}, "expected": true}
///   {"id": "p2", "reward": {"kind": "choice", "answer": "B"}, "response": "..."}
/// Of these fields only response and one of gold and reward are needed; others are passed over. What `expected` says (right or not right) is
/// compared with the verdicts.
///   adaroll verify --file rows.jsonl                          a summary: verdicts, speed, rows that are not correct
///   adaroll verify --file rows.jsonl --json > verdicts.jsonl  a line for each row, in order
///   zcat rows.jsonl.gz | adaroll verify --file - --out verdicts.jsonl
/// A line is {"id", "verdict", "extracted", "rule", "microseconds"}; the verdict is correct, wrong, no_answer, bad_gold (rule says why) or limit.
/// Exit status 0 where every row was judged and every `expected` met, 1 where one was not met, 2 where a line cannot be used.
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment)]
pub struct VerifyArgs {
    /// The reference answer; a pattern for regex, a JSON schema for json.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, required_unless_present_any = ["file", "reward"], conflicts_with = "file")]
    pub gold: Option<String>,
    /// A whole reward, as a job takes it, in place of --gold, --kind and the options; of a file's rows, those that have no gold.
    #[arg(long, value_name = "JSON", conflicts_with_all = ["gold", "kind", "option", "lenient", "text"])]
    pub reward: Option<String>,
    /// The response to judge; - reads standard input.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, required_unless_present = "file", conflicts_with = "file")]
    pub response: Option<String>,
    /// Rows, one JSON object a line; - reads standard input.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// What kind of reward the gold belongs to; of a file's rows, those that name none.
    #[arg(long, default_value = KINDS[0], value_parser = KINDS)]
    pub kind: String,
    /// An option of the reward: a field beside its answer, its value as JSON or a plain word. May be given several times; an unknown NAME is
    /// answered with those that there are. Holds for a file's rows of --kind, where they do not say otherwise.
    #[arg(long, value_name = "NAME=VALUE")]
    pub option: Vec<String>,
    /// Short for --option lenient=true: where nothing marks an answer, the last formula or number counts.
    #[arg(long)]
    pub lenient: bool,
    /// Short for --option gold_in_text=true: the gold is a longer text that its answer is looked for in, as in a response.
    #[arg(long)]
    pub text: bool,
    /// Show how the verdict came about: the gold, the options in force, what was taken for the answer.
    #[arg(long, conflicts_with = "file")]
    pub explain: bool,
    /// JSON on stdout: one object, or one line for each row of a file.
    #[arg(long)]
    pub json: bool,
    /// Write the lines of --json to this file, and the summary to stdout unless --json is given.
    #[arg(long, value_name = "FILE", requires = "file")]
    pub out: Option<PathBuf>,
    /// Threads that judge a file's rows [default: one a core].
    #[arg(long, value_name = "N", requires = "file", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// Why nothing could be judged.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The arguments, the gold, a line of the file, or a file itself.
    #[error("{0}")]
    Input(String),
    /// Lines cannot be written to stdout.
    #[error(transparent)]
    Output(#[from] std::io::Error),
}

/// What a run comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// For people; empty where the lines are all there is.
    pub text: String,
    /// The exit status.
    pub code: u8,
}

impl VerifyArgs {
    /// Judges. Lines for programs go to `out`; `progress` hears of rows that are done, of how many, where the file is large.
    pub fn run(&self, out: &mut dyn Write, progress: &dyn Fn(u64, u64)) -> Result<Told, VerifyError> {
        match (&self.response, &self.file) {
            (_, Some(file)) => self.run_file(file, out, progress),
            (Some(response), None) => self.run_one(response, out),
            (None, None) => Err(VerifyError::Input("give --gold and --response, or --file".into())),
        }
    }

    /// The options that the arguments give.
    fn options(&self) -> Result<Map<String, Value>, VerifyError> {
        let mut options = Map::new();
        for option in &self.option {
            let Some((name, value)) = option.split_once('=').filter(|(name, _)| !name.is_empty()) else {
                return Err(VerifyError::Input(format!("--option {option:?}: write it as NAME=VALUE, such as tolerance=1e-6")));
            };
            let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
            if options.insert(name.to_owned(), value).is_some() {
                return Err(VerifyError::Input(format!("--option {name} is given twice; give it once")));
            }
        }
        for (name, is_given) in [("lenient", self.lenient), ("gold_in_text", self.text)] {
            if is_given {
                options.insert(name.into(), true.into());
            }
        }
        Ok(options)
    }

    /// A field that cannot be used, as the argument that gave it.
    fn argument(error: FieldError) -> VerifyError {
        let argument = match error.path.strip_prefix("options.") {
            Some("lenient") => "--option lenient".to_owned(),
            Some(name) => format!("--option {name}"),
            None => format!("--{}", error.path),
        };
        VerifyError::Input(format!("{argument} {}", error.problem))
    }

    /// What the arguments hold responses against, with this gold.
    fn reference(&self, gold: Option<&str>) -> Result<Reference, VerifyError> {
        if let Some(reward) = &self.reward {
            let reward = serde_json::from_str(reward).map_err(|error| {
                VerifyError::Input(format!("--reward is not JSON: {error}; quote it for the shell: '{{\"kind\": \"math\", ...}}'"))
            })?;
            return Ok(Reference { reward: Some(reward), ..Reference::default() });
        }
        let (gold, kind) = (gold.map(Value::from), Some(self.kind.clone()));
        Ok(Reference { gold, kind, options: Some(self.options()?), reward: None })
    }

    fn run_one(&self, response: &str, out: &mut dyn Write) -> Result<Told, VerifyError> {
        let reference = self.reference(self.gold.as_deref())?;
        let question = reference.read().map_err(Self::argument)?;
        let response = match response {
            "-" => text_of(Path::new("-"))?,
            text => text.to_owned(),
        };
        let answer = question.judge(&response).map_err(VerifyError::Input)?;
        let code = match answer.ruling {
            Ruling::Correct => 0,
            Ruling::Wrong | Ruling::NoAnswer | Ruling::Limit => 1,
            Ruling::BadGold => 2,
        };
        let steps = if self.explain { explain(&question, &response, &answer) } else { Vec::new() };
        if self.json {
            let line = Line { explain: self.explain.then_some(&steps), ..Line::new(None, &answer) };
            writeln!(out, "{}", line.text()?)?;
            return Ok(Told { text: String::new(), code });
        }
        if answer.ruling == Ruling::BadGold {
            return Err(VerifyError::Input(format!("--{}", answer.rule)));
        }
        let mut text = sentence(&answer);
        for step in steps {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  {step}");
        }
        Ok(Told { text, code })
    }

    fn run_file(&self, path: &Path, out: &mut dyn Write, progress: &dyn Fn(u64, u64)) -> Result<Told, VerifyError> {
        // What is wrong with the arguments is no line's fault. This gold stands for any.
        let any = if self.kind == "json" { "{}" } else { "1" };
        let usual = self.reference(Some(any))?;
        usual.clone().read().map_err(Self::argument)?;
        let name = if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() };
        let text = text_of(path)?;
        let rows = Rows::new(&name, &text, usual, self.threads.map_or_else(default_threads, usize::from))?;
        rows.check()?;
        let mut file = self.out.as_deref().map(|out| create(out, path)).transpose()?;
        let lines: Option<&mut dyn Write> = match &mut file {
            Some(file) => Some(file),
            None => self.json.then_some(out),
        };
        let summary = self.judge_rows(&rows, lines, progress);
        let summary = match (summary, &self.out) {
            (Err(VerifyError::Output(error)), Some(out)) => {
                return Err(VerifyError::Input(format!("{}: cannot be written: {error}", out.display())));
            }
            (summary, _) => summary?,
        };
        let mut text = if self.json { String::new() } else { summary.to_string() };
        if let (false, Some(out)) = (self.json, &self.out) {
            let _ = write!(text, "\n\nwritten to {}", out.display());
        }
        Ok(Told { text, code: u8::from(summary.disagreed > 0) })
    }

    fn judge_rows(&self, rows: &Rows, mut lines: Option<&mut dyn Write>, progress: &dyn Fn(u64, u64)) -> Result<Summary, VerifyError> {
        let started = Instant::now();
        let mut summary = Summary::new(rows.name(), rows.threads());
        let (all, mut done) = (rows.len() as u64, 0);
        rows.judge(|judged| {
            if let Some(lines) = &mut lines {
                writeln!(lines, "{}", Line::new(Some(&judged.id), &judged.answer).text()?)?;
            }
            summary.add(judged);
            done += 1;
            if rows.len() >= ROWS_WITH_BAR && (done % 256 == 0 || done == all) {
                progress(done, all);
            }
            Ok(())
        })?;
        if let Some(lines) = lines {
            lines.flush()?;
        }
        summary.took = started.elapsed();
        Ok(summary)
    }
}

/// The text of a file, or of standard input.
fn text_of(path: &Path) -> Result<String, VerifyError> {
    let mut bytes = Vec::new();
    let (name, read) = match path == Path::new("-") {
        true => ("standard input".to_owned(), std::io::stdin().lock().read_to_end(&mut bytes)),
        false => (path.display().to_string(), File::open(path).and_then(|mut file| file.read_to_end(&mut bytes))),
    };
    read.map_err(|error| VerifyError::Input(format!("{name}: cannot be read: {error}")))?;
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
        VerifyError::Input(format!("{name}:{line}: is not UTF-8"))
    })
}

/// Makes the file for lines, and never of the one that was read.
fn create(out: &Path, input: &Path) -> Result<BufWriter<File>, VerifyError> {
    let same = |a: &Path, b: &Path| Some(a.canonicalize().ok()? == b.canonicalize().ok()?);
    if same(out, input) == Some(true) {
        return Err(VerifyError::Input(format!("--out {} is the file that is read; give another", out.display())));
    }
    let file = File::create(out).map_err(|error| VerifyError::Input(format!("{}: cannot be written: {error}", out.display())))?;
    Ok(BufWriter::new(file))
}

/// A verdict for programs.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a Value>,
    verdict: Ruling,
    extracted: Option<&'a str>,
    rule: &'a str,
    microseconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    explain: Option<&'a Vec<String>>,
}

impl<'a> Line<'a> {
    fn new(id: Option<&'a Value>, answer: &'a Answer) -> Self {
        Line {
            id,
            verdict: answer.ruling,
            extracted: answer.extracted.as_deref(),
            rule: &answer.rule,
            microseconds: (answer.took.as_nanos() as f64 / 100.0).round() / 10.0,
            explain: None,
        }
    }

    fn text(&self) -> Result<String, std::io::Error> {
        serde_json::to_string(self).map_err(Into::into)
    }
}

/// A verdict for people.
fn sentence(answer: &Answer) -> String {
    let extracted = answer.extracted.as_deref().map_or_else(String::new, |text| format!("  extracted: {text}"));
    format!("{}  ({}){extracted}", answer.ruling.name(), answer.rule)
}

/// How a verdict came about, a line a step.
fn explain(question: &Question, response: &str, answer: &Answer) -> Vec<String> {
    let mut steps: Vec<String> = question.spec().map(|spec| in_force(spec, question.gold_field())).into_iter().flatten().collect();
    steps.push(format!("response: {} characters", response.chars().count()));
    match question.compile() {
        Err(bad) => steps.push(format!("the gold cannot be used: {bad}")),
        Ok(verifier) => steps.extend(how(&verifier, response)),
    }
    steps.push(match &answer.extracted {
        Some(text) => format!("taken for the answer: {text:?}"),
        None => "nothing was taken for the answer".into(),
    });
    let reward = answer.reward.map_or_else(|| "none".to_owned(), |reward| reward.to_string());
    steps.push(format!("decided by: {}; verdict {}, reward {reward}", answer.rule, answer.ruling.name()));
    steps
}

/// The gold, the kind of its reward and all options, those with defaults too.
fn in_force(spec: &Spec, gold_field: Option<&str>) -> Vec<String> {
    let mut fields = serde_json::to_value(spec).unwrap_or_default();
    // Written are those that were given.
    if let (Spec::Math { options, .. }, Some(fields)) = (spec, fields.as_object_mut())
        && let Ok(options) = field::parse::<math::Options>(&Value::Object(options.clone()))
        && let Ok(Value::Object(options)) = serde_json::to_value(options)
    {
        fields.extend(options);
    }
    let gold = gold_field.and_then(|gold_field| fields.get(gold_field)).map(|gold| format!("gold: {gold}"));
    let options = fields.as_object().into_iter().flatten().filter(|(name, _)| *name != "kind" && Some(name.as_str()) != gold_field);
    let options: Vec<String> = options.map(|(name, value)| format!("{name}={value}")).collect();
    let options = if options.is_empty() { "none".to_owned() } else { options.join(" ") };
    let kind = fields.get("kind").and_then(Value::as_str).unwrap_or("?");
    gold.into_iter().chain([format!("kind: {kind}"), format!("options: {options}")]).collect()
}

/// What a verifier makes of its gold and does with a response.
fn how(verifier: &Verifier, _response: &str) -> Vec<String> {
    let step = match verifier {
        Verifier::Math(gold) if gold.is_understood() => return vec![format!("gold as read: {}", gold.text())],
        Verifier::Math(gold) => return vec![format!("gold as read: {}; it is not understood and only compared as a text", gold.text())],
        Verifier::Exact(_) => "the whole response is compared with the gold",
        Verifier::Regex(_) => "the pattern is looked for in the response",
        Verifier::Choice(_) => "the choice that the response settles on is compared with the gold",
        Verifier::Json(_) => "the response's JSON is held against the schema",
        Verifier::Format(_) => "the response's form is looked at",
        Verifier::Composition(_) => "the parts are judged one after the other; the rule names the one that decided",
        Verifier::Length(_) | Verifier::Webhook(_) | Verifier::Pull { .. } => "the text alone does not decide",
    };
    vec![step.into()]
}
