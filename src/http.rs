//! The HTTP listener: `/livez`, `/readyz` and `/metrics`.
//!
//! Small on purpose, and bounded: a limited number of connections, a time limit for a request's head,
//! no request bodies. It serves until it is dropped, so that readiness tells the truth during a drain.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use crate::metrics::Metrics;
use crate::status::Board;

/// Connections served at the same time; more wait until one ends.
const MAX_CONNECTIONS: usize = 64;

/// Time for a request's head, and for the silence between two requests of one connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for one whole connection, so that a reader that takes nothing cannot keep its place.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(120);

/// A bound port, not yet served.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Takes the port.
    ///
    /// # Errors
    /// The address is in use, not of this machine, or not allowed; in words.
    pub async fn bind(listen: SocketAddr) -> Result<Self, String> {
        let words = |error: std::io::Error| {
            format!(
                "cannot listen on {listen} (`http.listen`): {error}; choose another address or port"
            )
        };
        let socket = TcpListener::bind(listen).await.map_err(words)?;
        let address = socket.local_addr().map_err(words)?;
        Ok(Self { socket, address })
    }

    /// Where it listens, with the port that was found for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts serving. Ends when the returned handle is dropped.
    pub fn serve(self, board: Arc<Board>, metrics: Arc<Metrics>) -> Server {
        let router = router(board, metrics);
        Server(tokio::spawn(accept(self.socket, router)))
    }
}

/// A running listener; dropping it closes the port and every connection.
#[derive(Debug)]
pub struct Server(JoinHandle<()>);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn accept(socket: TcpListener, router: Router) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // Ends with this task, and every connection with it.
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match socket.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                connections.spawn(async move {
                    serve(stream, router).await;
                    drop(place);
                });
            }
            Err(error) => {
                // Out of file descriptors, mostly: it passes, and spinning does not help.
                tracing::warn!(%error, "the HTTP listener cannot accept a connection");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // Broken connections are the client's business.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
}

#[derive(Debug, Clone)]
struct Shown {
    board: Arc<Board>,
    metrics: Arc<Metrics>,
}

fn router(board: Arc<Board>, metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(render))
        .with_state(Shown { board, metrics })
}

/// Does the process make progress? A "no" is a reason to restart it; an outage elsewhere is not.
async fn livez(State(shown): State<Shown>) -> Response {
    let live = shown.board.live();
    (status(live), Json(json!({ "live": live }))).into_response()
}

/// Could an event be delivered now, and if not, why not?
async fn readyz(State(shown): State<Shown>) -> Response {
    let problems = shown.board.ready();
    let ready = problems.is_empty();
    // Paused is no outage: it shows, and the answer stays what it is.
    let paused = shown.board.paused();
    let body = json!({ "ready": ready, "problems": problems, "paused": paused });
    (status(ready), Json(body)).into_response()
}

async fn render(State(shown): State<Shown>) -> Response {
    match shown.metrics.render() {
        Ok(text) => {
            let kind = "text/plain; version=0.0.4; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => {
            tracing::warn!(%error, "metrics cannot be shown");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

fn status(good: bool) -> StatusCode {
    if good {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::status::{DatabaseState, Gate};

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("connects");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("writes");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("reads");
        answer
    }

    #[tokio::test]
    async fn health_follows_the_board_and_metrics_are_text() {
        let board = Arc::new(Board::new(&["orders"], &[("events", "nats")]));
        let metrics = Arc::new(Metrics::new().expect("metrics"));
        metrics.telemetry().announce("orders", &["events"]);
        let listen = "127.0.0.1:0".parse().expect("address");
        let listener = Listener::bind(listen).await.expect("binds");
        let address = listener.address();
        let server = listener.serve(Arc::clone(&board), metrics);

        assert!(ask(address, "/livez").await.starts_with("HTTP/1.1 200"));
        board.database_state(
            "orders",
            DatabaseState::Waiting,
            Some("connection refused".into()),
        );
        let answer = ask(address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.contains(r#""name":"orders""#), "{answer}");
        assert!(answer.contains("connection refused"), "{answer}");

        board.database_state("orders", DatabaseState::Active, None);
        board.gate("events", Gate::Open, None);
        let answer = ask(address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        board.database("orders", |shown| {
            shown.paused = vec!["sink events is paused by op since now: a move".into()];
        });
        let answer = ask(address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "no outage: {answer}");
        assert!(
            answer.contains("paused by op since now: a move"),
            "{answer}"
        );
        board.draining();
        assert!(ask(address, "/readyz").await.contains("shutting down"));

        let answer = ask(address, "/metrics").await;
        assert!(answer.contains("event_outbox_published_total{"), "{answer}");
        assert!(ask(address, "/nothing").await.starts_with("HTTP/1.1 404"));

        let taken = Listener::bind(address)
            .await
            .expect_err("the port is taken");
        assert!(taken.contains("http.listen"), "{taken}");
        drop(server);
    }
}
