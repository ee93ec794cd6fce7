//! The trainer's own `/metrics`: the last value of every number, under the name that practitioners know (`critic/score/mean` is
//! `trainer_critic_score_mean`).

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::routing::get;
use prometheus::{Encoder, Gauge, Registry, TextEncoder};

use super::journal::Numbers;
use super::names;

/// Every number so far.
#[derive(Clone, Default)]
pub struct Exposition {
    registry: Registry,
    gauges: Arc<Mutex<HashMap<String, Gauge>>>,
}

impl Exposition {
    /// Takes over a line's numbers.
    pub fn set(&self, numbers: &Numbers) {
        let mut gauges = self.gauges.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, value) in numbers.iter() {
            if !gauges.contains_key(name) {
                let Ok(gauge) = Gauge::new(names::prometheus(name), names::help(name)) else { continue };
                // Two names that differ only in their signs would be one here; the first keeps it.
                if self.registry.register(Box::new(gauge.clone())).is_err() {
                    continue;
                }
                gauges.insert(name.to_owned(), gauge);
            }
            gauges[name].set(value);
        }
    }

    fn text(&self) -> Result<String, prometheus::Error> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Serves them at this address for as long as the runtime lives. Gives the address.
    pub async fn listen(&self, address: &str) -> Result<SocketAddr, String> {
        let fail = |e: std::io::Error| {
            format!("metrics.listen {address:?}: {e}; give a free address such as \"127.0.0.1:9100\", or \"\" for none")
        };
        let listener = tokio::net::TcpListener::bind(address).await.map_err(fail)?;
        let bound = listener.local_addr().map_err(fail)?;
        let shown = self.clone();
        let route = get(move || {
            let shown = shown.clone();
            async move {
                match shown.text() {
                    Ok(text) => (axum::http::StatusCode::OK, [("content-type", "text/plain; version=0.0.4")], text),
                    Err(e) => (axum::http::StatusCode::INTERNAL_SERVER_ERROR, [("content-type", "text/plain")], e.to_string()),
                }
            }
        });
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, Router::new().route("/metrics", route)).await {
                tracing::warn!("the trainer's /metrics ended: {error}");
            }
        });
        Ok(bound)
    }
}
