//! `adaroll serve`: the rollout server over one model.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpListener;

use super::open::Opened;
use crate::engine::Engine;
use crate::server::{self, AppState, Options};

/// Why the server did not start or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address.
    #[error("{0} is not a loopback address, and this version has no tokens to guard a public one; use 127.0.0.1 or ::1")]
    Public(IpAddr),
    /// The port.
    #[error("the server cannot listen on {0}: {1}; choose another --port")]
    Listen(SocketAddr, std::io::Error),
    /// The metrics.
    #[error("the metrics cannot be registered: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The connection handling.
    #[error("the server stopped: {0}")]
    Io(#[from] std::io::Error),
}

/// Listens on a loopback address (port 0: any free one); `listening` is told which. Ends when `shutdown` does.
pub async fn serve(
    opened: Opened,
    address: SocketAddr,
    listening: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServeError> {
    if !address.ip().is_loopback() {
        return Err(ServeError::Public(address.ip()));
    }
    let listener = TcpListener::bind(address).await.map_err(|e| ServeError::Listen(address, e))?;
    listening(listener.local_addr()?);
    let Opened { engine, text } = opened;
    let engine: Arc<dyn Engine> = Arc::new(engine);
    let state = AppState::new(engine, Arc::new(text), Options::default())?;
    Ok(server::serve(state, listener, shutdown).await?)
}
