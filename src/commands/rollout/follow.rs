//! A job's stream, across broken connections.
//!
//! The job is posted with an id; what is read of its NDJSON stream (`{"job": ...}`, groups, `{"end": ...}`, empty lines between) is counted,
//! so a broken connection is made again at `/v1/rollouts/{id}/events?cursor=N`. A server that no longer knows the job gets it again: the
//! same id and the same body are the same job. Half a line is never passed on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use reqwest::header::{ACCEPT, RETRY_AFTER};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde_json::Value;

use super::RolloutError;

/// The server sends an empty line every 15 s; a connection that is silent for longer than this is broken.
const SILENCE: Duration = Duration::from_secs(60);
/// First and longest pause before another try.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(8));

/// One event of a job's stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// What the job was accepted as.
    Job(Value),
    /// A group, as its line.
    Group(String),
    /// How the job ended.
    End(Value),
}

/// Where a server is, and how long to wait for it.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Its address.
    pub server: String,
    /// Data token; absent: ADAROLL_TOKEN, where that is set.
    pub token: Option<String>,
    /// How long it may say nothing.
    pub patience: Duration,
}

impl Connection {
    /// The address, checked.
    pub fn base(&self) -> Result<Url, String> {
        let wrong = |problem: String| format!("server {:?}: {problem}; give a URL such as http://127.0.0.1:8000", self.server);
        let base = Url::parse(&self.server).map_err(|e| wrong(e.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") || base.host().is_none() {
            return Err(wrong("is no http or https address".into()));
        }
        Ok(base)
    }

    /// An HTTP client for it.
    pub fn client(&self) -> Result<Client, String> {
        // A second call in one process finds the provider installed, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = Client::builder().connect_timeout(Duration::from_secs(10)).read_timeout(SILENCE);
        builder.build().map_err(|e| format!("the HTTP client cannot be made: {e}"))
    }

    /// The token to send.
    pub fn token(&self) -> Option<String> {
        self.token.clone().or_else(|| std::env::var("ADAROLL_TOKEN").ok()).filter(|token| !token.is_empty())
    }
}

/// Follows one job.
pub struct Follower {
    client: Client,
    base: Url,
    token: Option<String>,
    job_id: String,
    body: Value,
    /// `file:line` of every prompt.
    lines: Vec<String>,
    response: Option<Response>,
    buffer: Vec<u8>,
    ready: VecDeque<String>,
    /// Events read of the job's log; nothing before the server has taken the job.
    cursor: Option<usize>,
    patience: Duration,
    /// Since when nothing has come.
    stalled: Option<Instant>,
    pause: Duration,
    connected: u32,
}

/// Why a try did not work.
enum Setback {
    /// Another one may; it says what went wrong, and how long the server asks to wait.
    Passing(String, Option<Duration>),
    /// None will.
    Final(RolloutError),
}

impl Follower {
    /// A follower of the job that `body` asks for; `lines` name the place that each prompt was read from.
    pub fn new(connection: &Connection, body: Value, lines: Vec<String>) -> Result<Self, RolloutError> {
        let (base, client) = (connection.base().map_err(RolloutError::Input)?, connection.client().map_err(RolloutError::Input)?);
        let token = connection.token();
        Ok(Follower {
            client,
            base,
            token,
            job_id: body.get("job_id").and_then(Value::as_str).unwrap_or_default().to_owned(),
            body,
            lines,
            response: None,
            buffer: Vec::new(),
            ready: VecDeque::new(),
            cursor: None,
            patience: connection.patience,
            stalled: None,
            pause: BACKOFF.0,
            connected: 0,
        })
    }

    /// The job's id.
    pub fn job_id(&self) -> &str {
        &self.job_id
    }

    /// Times that the connection was made again.
    pub fn reconnects(&self) -> u32 {
        self.connected.saturating_sub(1)
    }

    /// The next event. Safe to drop and call again: what was read is kept.
    pub async fn next(&mut self) -> Result<Event, RolloutError> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return self.event(line);
            }
            let step = match &mut self.response {
                None => self.connect().await,
                Some(response) => match response.chunk().await {
                    Ok(Some(bytes)) => {
                        self.take(&bytes);
                        Ok(())
                    }
                    Ok(None) => Err(Setback::Passing("the server closed the stream before the job's end".into(), None)),
                    Err(e) => Err(Setback::Passing(format!("the connection broke: {}", reason(e)), None)),
                },
            };
            match step {
                Ok(()) => {}
                Err(Setback::Final(error)) => return Err(error),
                Err(Setback::Passing(problem, wait)) => {
                    self.response = None;
                    self.buffer.clear();
                    let since = *self.stalled.get_or_insert_with(Instant::now);
                    if since.elapsed() >= self.patience {
                        return Err(RolloutError::Unreachable { problem, job_id: self.job_id.clone(), patience: self.patience });
                    }
                    tokio::time::sleep(wait.unwrap_or(self.pause).min(self.patience)).await;
                    self.pause = (self.pause * 2).min(BACKOFF.1);
                }
            }
        }
    }

    fn url(&self, path: &str) -> Result<Url, Setback> {
        let mut url = self.base.clone();
        let joined = format!("{}{path}", url.path().trim_end_matches('/'));
        url.set_path(&joined);
        Ok(url)
    }

    fn send(&self, request: RequestBuilder) -> RequestBuilder {
        let request = request.header(ACCEPT, "application/x-ndjson");
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Posts the job, or attaches to it where it was left.
    async fn connect(&mut self) -> Result<(), Setback> {
        let request = match self.cursor {
            None => self.client.post(self.url("/v1/rollouts")?).json(&self.body),
            Some(cursor) => {
                let mut url = self.url(&format!("/v1/rollouts/{}/events", self.job_id))?;
                url.set_query(Some(&format!("cursor={cursor}")));
                self.client.get(url)
            }
        };
        let response = self
            .send(request)
            .send()
            .await
            .map_err(|e| Setback::Passing(format!("{} cannot be reached: {}", self.base, reason(e)), None))?;
        let status = response.status();
        if status.is_success() {
            self.cursor.get_or_insert(0);
            self.connected += 1;
            self.response = Some(response);
            return Ok(());
        }
        if status == StatusCode::NOT_FOUND && self.cursor.is_some() {
            self.cursor = None;
            return Err(Setback::Passing("the server no longer knows the job".into(), Some(BACKOFF.0)));
        }
        let wait = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok()).map(Duration::from_secs);
        let refused = self.refused(status, &response.text().await.unwrap_or_default());
        let passes = status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::REQUEST_TIMEOUT || status.is_server_error();
        Err(if passes { Setback::Passing(refused.to_string(), wait) } else { Setback::Final(refused) })
    }

    /// The server's refusal, with the line of the file where it is about a prompt.
    fn refused(&self, status: StatusCode, text: &str) -> RolloutError {
        let answer: Value = serde_json::from_str(text).unwrap_or_default();
        let field = |name: &str| answer.pointer(&format!("/error/{name}")).and_then(Value::as_str);
        let line_of = |param: Option<&str>| {
            let position = param.and_then(|param| param.strip_prefix("prompts[")?.split_once(']')?.0.parse::<usize>().ok());
            position.and_then(|position| self.lines.get(position)).map_or_else(String::new, |line| format!("{line}: "))
        };
        let line = line_of(field("param"));
        let details = answer.pointer("/error/details").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let details = details.iter().map(|detail| {
            let field = |name: &str| detail.get(name).and_then(Value::as_str);
            format!("\n{}{}: {}", line_of(field("param")), field("param").unwrap_or("?"), field("problem").unwrap_or("?"))
        });
        // A single one is what the message is about.
        let details: String = if details.len() > 1 { details.collect() } else { String::new() };
        let shown = field("message").map_or_else(|| text.chars().take(300).collect(), str::to_owned);
        let help = match status {
            StatusCode::UNAUTHORIZED => " (set ADAROLL_TOKEN or --token)",
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => " (is --server an adaroll server?)",
            _ => "",
        };
        RolloutError::Refused {
            status: status.as_u16(),
            code: field("code").unwrap_or("unknown").to_owned(),
            message: format!("{line}{shown}{help}{details}"),
        }
    }

    /// Takes whole lines out of what has come.
    fn take(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        let Some(end) = self.buffer.iter().rposition(|&byte| byte == b'\n') else { return };
        let rest = self.buffer.split_off(end + 1);
        let whole = std::mem::replace(&mut self.buffer, rest);
        let text = String::from_utf8_lossy(&whole);
        self.ready.extend(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned));
        // An empty line is a sign of life too.
        self.stalled = None;
        self.pause = BACKOFF.0;
    }

    fn event(&mut self, line: String) -> Result<Event, RolloutError> {
        if let Some(cursor) = &mut self.cursor {
            *cursor += 1;
        }
        // Only the first and the last line are objects with one key; groups are passed on as they are.
        for (key, event) in [("job", Event::Job as fn(Value) -> Event), ("end", Event::End)] {
            if line.starts_with(&format!("{{\"{key}\":")) {
                let mut value: Value = serde_json::from_str(&line)
                    .map_err(|e| RolloutError::Protocol(format!("the server sent a line that is no JSON: {e}")))?;
                return Ok(event(value[key].take()));
            }
        }
        Ok(Event::Group(line))
    }
}

/// What went wrong, down to the system's word, without the address (which might hold a password).
pub(crate) fn reason(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
