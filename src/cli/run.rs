//! `outboxd run`: the service.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;

use super::Global;
use super::failure::{Code, Failure};
use super::output::{no_route, print, say};
use super::signals::Signals;
use super::target::{self, NO_DATABASE};
use crate::config::{Config, Loaded, LogFormat, SinkType, build};
use crate::http::{Listener, Server};
use crate::metrics::Metrics;
use crate::relay::{self, Relay};
use crate::status::{Board, DatabaseState, Gate};

/// With `--once`: an outage that lasts this long ends the run.
const OUTAGE_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
#[command(after_help = "\
SIGTERM or SIGINT ends it in order, within shutdown.grace; a second one ends it at once. Health is at
/livez and /readyz, metrics are at /metrics, if http.listen is set.")]
pub(super) struct RunArgs {
    /// Deliver what is due now, say what is not, and end.
    #[arg(long)]
    once: bool,
}

pub(super) async fn run(global: &Global, args: &RunArgs) -> Result<(), Failure> {
    let loaded = global.load()?;
    crate::logging::start(&loaded.config.log);
    #[cfg(feature = "testing")]
    arm_fail_points()?;
    let mut signals = Signals::take()?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    if loaded.config.databases.is_empty() {
        return Err(Failure::usage(NO_DATABASE));
    }
    let metrics = Arc::new(Metrics::new().map_err(Failure::failed)?);
    let options = build::options(&loaded.config, metrics.telemetry())?;
    if args.once {
        reachable(&loaded.config, &options).await?;
    }
    let listener = bind(&loaded).await?;
    let relay = relay::start(options)
        .await
        .map_err(|error| Failure::failed(super::failure::in_words(&error)))?;
    let board = relay.board();
    let server = listener.map(|listener| listener.serve(Arc::clone(&board), metrics));
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        databases = loaded.config.databases.len(),
        sinks = loaded.config.sinks.len(),
        "outboxd runs"
    );
    let end = wait(&relay, &board, &mut signals, args.once).await;
    finish(relay, &board, server, end).await
}

/// A test says where this process is to fail.
#[cfg(feature = "testing")]
fn arm_fail_points() -> Result<(), Failure> {
    let points = std::env::var("OUTBOXD_FAIL_POINTS").unwrap_or_default();
    crate::testing::fail_points::arm(&points).map_err(Failure::usage)
}

/// Takes the port before anything else starts, so that a wrong address is told at once.
async fn bind(loaded: &Loaded) -> Result<Option<Listener>, Failure> {
    let Some(listen) = loaded.config.http.listen else {
        return Ok(None);
    };
    let listener = Listener::bind(listen).await.map_err(Failure::failed)?;
    let url = format!("http://{}", listener.address());
    tracing::info!("listening on {url}");
    // Whoever asked for any port has to learn which one, even with the log turned down; standard output
    // is free for it unless events go there.
    if listen.port() == 0 {
        let events_on_stdout = loaded
            .config
            .sinks
            .values()
            .any(|sink| sink.kind == Some(SinkType::Stdout));
        if !events_on_stdout {
            print(&format!("{url}\n"))?;
        } else if loaded.config.log.format == LogFormat::Human {
            say(format_args!("listening on {url}"));
        }
    }
    Ok(Some(listener))
}

/// Why a run ends.
enum End {
    Asked(&'static str),
    Drained,
    Outage(Failure),
    Died(Failure),
}

async fn wait(relay: &Relay, board: &Board, signals: &mut Signals, once: bool) -> End {
    let drained = async {
        match once {
            true => relay.drained().await,
            false => std::future::pending().await,
        }
    };
    let outage = async {
        match once {
            true => outage(board).await,
            false => std::future::pending().await,
        }
    };
    tokio::select! {
        signal = signals.first() => End::Asked(signal),
        result = relay.stopped() => End::Died(Failure::failed(match result {
            Ok(()) => "the relay ended by itself".to_owned(),
            Err(error) => format!("the relay ended by itself: {}", super::failure::in_words(&error)),
        })),
        () = drained => End::Drained,
        failure = outage => End::Outage(failure),
    }
}

/// Stops the relay within its grace and says what became of the events in flight.
async fn finish(
    relay: Relay,
    board: &Board,
    server: Option<Server>,
    end: End,
) -> Result<(), Failure> {
    board.draining();
    let mut result = Ok(());
    match end {
        End::Died(failure) => return Err(failure),
        End::Asked(signal) => tracing::info!("{signal}: shutting down"),
        End::Drained => say(format_args!("{}", left_over(board))),
        End::Outage(failure) => result = Err(failure),
    }
    match relay.shutdown().await {
        Ok(report) if report.unknown > 0 => tracing::warn!(
            acked = report.acked,
            returned = report.returned,
            unknown = report.unknown,
            "stopped; events without an answer will be sent again with the same message id"
        ),
        Ok(report) => tracing::info!(
            acked = report.acked,
            returned = report.returned,
            unknown = report.unknown,
            "stopped"
        ),
        Err(error) => {
            let words = format!("not stopped in order: {}", super::failure::in_words(&error));
            tracing::error!("{words}");
            // The outage, if there was one, is what the exit code tells.
            result = result.and(Err(Failure::failed(words)));
        }
    }
    drop(server);
    result
}

/// With `--once`: what was not delivered because its time has not come.
fn left_over(board: &Board) -> String {
    let snapshot = board.snapshot();
    let delivered: u64 = snapshot.feeds.iter().map(|feed| feed.published).sum();
    let discarded: u64 = snapshot.feeds.iter().map(|feed| feed.discarded).sum();
    let parked: u64 = snapshot.feeds.iter().map(|feed| feed.parked).sum();
    let mut words = format!(
        "everything due was delivered: {delivered} published, {discarded} discarded; {parked} keys wait for \
         their time or an operator (delayed, backing off, blocked or paused)"
    );
    for paused in board.paused() {
        let line = format!("{}: {}", paused.database, paused.words);
        words.push_str(&format!("\n{}", super::output::safe(&line)));
    }
    for database in &snapshot.databases {
        for kind in &database.unrouted {
            words.push('\n');
            words.push_str(no_route(&database.name, kind).trim_end());
        }
    }
    words
}

/// With `--once`, nothing would be gained by waiting for a database or a sink that is not there.
async fn reachable(config: &Config, options: &relay::Options) -> Result<(), Failure> {
    for target in target::all(config, None)? {
        target::patiently(target.admin.status())
            .await
            .map_err(|error| Failure::database(&target.name, &error))?;
    }
    for sink in &options.sinks {
        let name = &sink.name;
        match tokio::time::timeout(OUTAGE_LIMIT, sink.sink.open()).await {
            Ok(Ok(session)) => session.close().await,
            Ok(Err(error)) => return Err(Failure::sink(name, &error)),
            Err(_) => {
                let words = format!("sink {name}: no answer within {} s", OUTAGE_LIMIT.as_secs());
                return Err(Failure::new(Code::Sink, words));
            }
        }
    }
    Ok(())
}

/// With `--once`: resolves when a database or a sink has been away for [`OUTAGE_LIMIT`], or when another
/// instance has kept a database for so long that it is plainly alive.
async fn outage(board: &Board) -> Failure {
    let mut since: Option<Instant> = None;
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        match away(board) {
            None => since = None,
            Some(failure) if since.get_or_insert_with(Instant::now).elapsed() > OUTAGE_LIMIT => {
                return failure;
            }
            Some(_) => {}
        }
    }
}

/// What keeps the relay from delivering now; a database goes before a sink.
fn away(board: &Board) -> Option<Failure> {
    let snapshot = board.snapshot();
    let why = |part: &str, name: &str, reason: Option<&str>| {
        super::failure::about(part, name, reason.unwrap_or("no reason given"))
    };
    let database = snapshot.databases.iter().find_map(|database| {
        let code = match database.state {
            DatabaseState::Waiting | DatabaseState::Parked => Code::Database,
            DatabaseState::Standby => Code::Failed,
            _ => return None,
        };
        let reason = match code {
            Code::Failed => Some("another instance delivers its events"),
            _ => database.why(),
        };
        Some(Failure::new(code, why("database", &database.name, reason)))
    });
    database.or_else(|| {
        let sink = snapshot.sinks.iter().find(|sink| sink.gate != Gate::Open)?;
        let words = why("sink", &sink.name, sink.reason.as_deref());
        Some(Failure::new(Code::Sink, words))
    })
}
