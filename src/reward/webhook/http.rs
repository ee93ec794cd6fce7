//! Calls over HTTP/1.1: no redirects, no proxy from the environment, no cookies, answers of bounded size.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Client, Url, redirect};

use super::transport::{Reply, Transport, Unanswered};

/// The transport that the server uses.
#[derive(Clone, Debug)]
pub struct Http {
    client: Result<Client, String>,
    answer_bytes: usize,
}

impl Http {
    /// Takes answers of at most `answer_bytes`. A client that cannot be built fails every call and says why.
    pub fn new(answer_bytes: usize) -> Self {
        // reqwest is built without a provider of its own. An error means that the process has one already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || {
            let builder = Client::builder().no_proxy().redirect(redirect::Policy::none()).retry(reqwest::retry::never());
            builder.user_agent(concat!("adaroll/", env!("CARGO_PKG_VERSION"))).pool_idle_timeout(Duration::from_secs(30))
        };
        // A machine without certificates can still ask graders over plain http; over https every certificate is then unknown.
        let client = builder().build().or_else(|_| builder().tls_certs_only([]).build());
        Http { client: client.map_err(|error| told(&error)), answer_bytes }
    }
}

impl Transport for Http {
    fn post(&self, url: Url, body: Vec<u8>) -> BoxFuture<'static, Result<Reply, Unanswered>> {
        let Http { client, answer_bytes } = self.clone();
        async move {
            let client = client.map_err(|problem| Unanswered(format!("cannot be asked: {problem}")))?;
            let sent = client.post(url).header(CONTENT_TYPE, "application/json").body(body).send().await;
            let mut response = sent.map_err(|error| Unanswered(format!("could not be reached: {}", told(&error))))?;
            let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
            let mut reply =
                Reply { status: response.status().as_u16(), retry_after: retry_after.map(Duration::from_secs), body: Vec::new() };
            loop {
                let chunk = response.chunk().await.map_err(|error| Unanswered(format!("broke off its answer: {}", told(&error))))?;
                let Some(chunk) = chunk else { return Ok(reply) };
                if reply.body.len() + chunk.len() > answer_bytes {
                    return Err(Unanswered(format!("answered with more than {answer_bytes} bytes")));
                }
                reply.body.extend_from_slice(&chunk);
            }
        }
        .boxed()
    }
}

/// An error with its causes and without the URL, which the message that holds it names.
fn told(error: &reqwest::Error) -> String {
    let mut told = String::new();
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(error) = cause {
        let text = error.to_string();
        if !told.contains(&text) {
            told = if told.is_empty() { text } else { format!("{told}: {text}") };
        }
        cause = error.source();
    }
    if told.is_empty() { error.to_string() } else { told }
}
